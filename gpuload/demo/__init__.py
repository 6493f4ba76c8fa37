"""The demo of `gpuload demo`: photographs, cut into .npy files, train a small network."""

// Threads do not survive a fork, and their locks may stay locked: what a child inherits is left alone.
#pragma once

#include <unistd.h>

namespace gpuload {

// The process that made an object, to be compared where the object is used.
class Process {
  public:
    bool is_other() const { return pid_ != ::getpid(); }
    pid_t pid() const { return pid_; }

  private:
    pid_t pid_ = ::getpid();
};

}  // namespace gpuload

#!/usr/bin/env bash
# Build the native module with a sanitizer and run tests that stress it.
#
#     tests/sanitize.sh address|thread [pytest arguments]
#
# Takes minutes; nothing is installed. Run it in the environment to develop in (CONTRIBUTING.md). What
# a sanitizer has to say is printed at the end and fails the run. Python, torch and their allocators are not
# instrumented: leaks are not looked for, and races are reported only where our code takes part.
set -euo pipefail

kind=${1:?address or thread}
shift
python=${PYTHON:-python}
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/sanitize-$kind
case $kind in
    address) flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined" library=libasan.so ;;
    thread) flags="-fsanitize=thread" library=libtsan.so ;;
    *) echo "$0: expected address or thread, got $kind" >&2; exit 2 ;;
esac

cmake -S "$root/csrc" -B "$build" -G Ninja -Wno-dev \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPython_EXECUTABLE="$(command -v "$python")" \
    -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" \
    -DCMAKE_CXX_FLAGS="$flags -fno-omit-frame-pointer" >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
cmake --build "$build" --target _native >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }

# A package of links to the sources and to the instrumented module, which comes first on the path.
package=$build/package
rm -rf "$package"
mkdir -p "$package/gpuload"
find "$root/gpuload" -mindepth 1 -maxdepth 1 ! -name '_native*.so' ! -name __pycache__ \
    -exec ln -s {} "$package/gpuload/" \;
ln -s "$build"/_native*.so "$package/gpuload/"
cat >"$package/sitecustomize.py" <<'PYTHON'
import sys
# An editable install would come before the path.
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
PYTHON

export PYTHONPATH=$package PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
rm -f "$build"/report.*
options="log_path=$build/report:handle_sigbus=0:handle_segv=0"
export ASAN_OPTIONS=$options:detect_leaks=0:detect_odr_violation=0
export UBSAN_OPTIONS=$options:print_stacktrace=1
export TSAN_OPTIONS=$options:ignore_noninstrumented_modules=1:exitcode=0
preload="$(gcc -print-file-name=$library) $(gcc -print-file-name=libstdc++.so.6)"
cd "$root/tests"
LD_PRELOAD=$preload "$python" -c 'import gpuload._native as n; assert "sanitize" in n.__file__, n.__file__'
status=0
LD_PRELOAD=$preload "$python" -m pytest -q -p no:cacheprovider --timeout=600 --maxfail=5 "$@" || status=$?
if compgen -G "$build/report.*" >/dev/null; then
    cat "$build"/report.*
    exit 1
fi
echo "$kind: no report"
exit $status

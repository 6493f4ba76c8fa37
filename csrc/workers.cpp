#include "workers.hpp"

#include <algorithm>
#include <system_error>

#include <pthread.h>
#include <signal.h>

namespace gpuload {

Workers::Workers(int n_threads) {
    // Signals are Python's: let its main thread get them. SIGBUS of our own copies is delivered all the same.
    sigset_t all, before;
    sigfillset(&all);
    for (const int synchronous : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) sigdelset(&all, synchronous);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        for (int i = 0; i < std::max(n_threads, 1); ++i) threads_.emplace_back([this] { loop(); });
    } catch (const std::system_error &) {
        // No more threads to be had: the ones that run do the work.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (threads_.empty()) throw std::runtime_error("threads: expected to start a thread, got none from the system");
}

Workers::~Workers() {
    {
        const std::lock_guard guard(mutex_);
        stop_ = true;
    }
    more_.notify_all();
    for (std::thread &thread : threads_) thread.join();
}

void Workers::add(Work *work) {
    const std::lock_guard guard(mutex_);
    works_.push_back(work);
    ++wakes_;
    more_.notify_all();
}

bool Workers::remove(Work *work, std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    works_.remove(work);
    return left_.wait_for(lock, timeout, [&] { return work->active_ == 0; });
}

bool Workers::help(Work *work) {
    Work::Part part;
    std::unique_lock lock(mutex_);
    if (!work->claim(part)) return false;
    ++work->active_;
    lock.unlock();
    work->execute(part);
    lock.lock();
    if (--work->active_ == 0) left_.notify_all();
    return true;
}

void Workers::wake_idle() {
    const std::lock_guard guard(mutex_);
    ++wakes_;
    more_.notify_all();
}

void Workers::loop() {
    pthread_setname_np(pthread_self(), "gpuload");
    std::unique_lock lock(mutex_);
    while (!stop_) {
        Work *work = nullptr;
        Work::Part part;
        // Declared idle before looking: a wake() that comes after the look is then not lost.
        idle_.fetch_add(1, std::memory_order_seq_cst);
        const std::uint64_t seen = wakes_;
        for (Work *candidate : works_)
            if (candidate->claim(part)) {
                work = candidate;
                break;
            }
        if (work == nullptr) more_.wait(lock, [&] { return stop_ || wakes_ != seen; });
        idle_.fetch_sub(1, std::memory_order_seq_cst);
        if (work == nullptr) continue;
        ++work->active_;
        lock.unlock();
        work->execute(part);
        lock.lock();
        if (--work->active_ == 0) left_.notify_all();
    }
}

}  // namespace gpuload

// Threads that work for whoever has something to do.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "fork.hpp"

namespace gpuload {

// Something that can be done in parts. `claim` is called by one thread at a time; it takes the next part or
// says that there is none now. `execute` does a part; it is called by many threads and never throws.
class Work {
  public:
    struct Part {
        std::int64_t first, last, chunk;
    };

    virtual ~Work() = default;
    virtual bool claim(Part &part) = 0;
    virtual void execute(const Part &part) noexcept = 0;

  private:
    friend class Workers;
    int active_ = 0;  // threads in execute; guarded by the mutex of the workers
};

// Do `work(i)` for each i of [0, n) on the calling thread and at most `n_threads` - 1 others. Throws what one of them threw,
// when all have stopped.
template <class Do>
void in_parallel(std::size_t n, int n_threads, const Do &work) {
    std::atomic<std::size_t> next{0};
    std::mutex mutex;
    std::exception_ptr failed;
    const auto share = [&] {
        for (std::size_t i; (i = next.fetch_add(1)) < n;) {
            try {
                work(i);
            } catch (...) {
                const std::lock_guard guard(mutex);
                if (!failed) failed = std::current_exception();
                next.store(n);
            }
        }
    };
    std::vector<std::thread> threads;
    try {
        for (int i = 1; i < n_threads && static_cast<std::size_t>(i) < n; ++i) threads.emplace_back(share);
    } catch (const std::system_error &) {
        // No more threads are to be had: those that run do the work.
    }
    share();
    for (std::thread &thread : threads) thread.join();
    if (failed) std::rethrow_exception(failed);
}

class Workers {
  public:
    explicit Workers(int n_threads);
    ~Workers();  // not for the owner of a Work that is still added
    Workers(const Workers &) = delete;
    Workers &operator=(const Workers &) = delete;

    void add(Work *work);
    // No thread will begin a part of `work`. Returns when none is in it any more, or false after `timeout`.
    bool remove(Work *work, std::chrono::nanoseconds timeout);

    // Do one part of `work` on the calling thread. False when there is none to claim.
    bool help(Work *work);

    // There may be something to claim again. Cheap when all threads are busy.
    void wake() {
        if (idle_.load(std::memory_order_seq_cst) > 0) wake_idle();
    }

    std::size_t n_threads() const { return threads_.size(); }
    const Process &process() const { return process_; }

  private:
    void loop();
    void wake_idle();

    Process process_;
    std::mutex mutex_;
    std::condition_variable more_, left_;
    std::list<Work *> works_;
    std::atomic<int> idle_{0};
    std::uint64_t wakes_ = 0;
    bool stop_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace gpuload

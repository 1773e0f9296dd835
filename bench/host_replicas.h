// Gets of three replicas of a key-value store by one of several strategies; prints percentiles. A file for each store includes this one
// and has the functions of Store. Built and run by bench/host_replicas.py.
//
// usage: fill DIR KEYS | cost DIR KEYS | STRATEGY SECONDS LIMIT_US SEED KEYS DIR DIR DIR
// STRATEGY: base (one replica, wait), timeout (give up after LIMIT_US, ask the next), hedged (ask a second after LIMIT_US, take the
// first answer), mitt (a deadline of LIMIT_US: Busy, ask the next; the third without a deadline).
// cost: processor time of a get whose pages are in memory, with the store's own files and with deadlines.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace std::chrono;

class Store {
 public:
  virtual ~Store() = default;
  // False: refused. Zero: without a deadline.
  virtual bool get(const std::string& key, microseconds limit) = 0;
  // Reads all keys once, with a far deadline.
  virtual void read_all() = 0;

  // With reads that may be refused, or with the store's own files.
  static std::unique_ptr<Store> opened(const std::string& dir, bool may_refuse);
  // Its own files are mapped. POSIX_FADV_DONTNEED doesn't drop mapped pages.
  static const bool maps;
  static void fill(const std::string& dir, uint64_t keys, const std::string& value);
  // The last letters of its files with data.
  static const char* const tables;
  // The least size of these files in bytes.
  static const off_t least;
};

inline std::string key(uint64_t n) {
  char text[32];
  snprintf(text, sizeof text, "key%012llu", static_cast<unsigned long long>(n));
  return text;
}

template <typename Status>
void check(const Status& s) {
  if (!s.ok()) {
    fprintf(stderr, "%s\n", s.ToString().c_str());
    exit(1);
  }
}

// Threads that get from one replica.
class Replica {
 public:
  explicit Replica(Store* store) : store_(store) {
    for (int i = 0; i < 8; i++) std::thread([this] { serve(); }).detach();
  }
  void ask(std::function<void(Store*)> job) {
    std::lock_guard<std::mutex> l(m_);
    jobs_.push_back(std::move(job));
    c_.notify_one();
  }

 private:
  void serve() {
    for (;;) {
      std::unique_lock<std::mutex> l(m_);
      c_.wait(l, [this] { return !jobs_.empty(); });
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      l.unlock();
      job(store_);
    }
  }
  Store* store_;
  std::mutex m_;
  std::condition_variable c_;
  std::deque<std::function<void(Store*)>> jobs_;
};

struct Answer {
  std::mutex m;
  std::condition_variable c;
  bool done = false;
};

static void get_async(Replica& r, const std::string& k, std::shared_ptr<Answer> a) {
  r.ask([k, a](Store* store) {
    store->get(k, microseconds::zero());
    std::lock_guard<std::mutex> l(a->m);
    a->done = true;
    a->c.notify_all();
  });
}

static bool wait(Answer& a, microseconds limit) {
  std::unique_lock<std::mutex> l(a.m);
  return a.c.wait_for(l, limit, [&] { return a.done; });
}

// Times that all pages were dropped. Where a busy machine makes this rare, gets find their pages in memory, and the comparison isn't valid.
static std::atomic<uint64_t> evictions{0};

// Memory pressure from elsewhere: pages are dropped from the page cache all the time.
static void evict(const std::vector<std::string>& dirs) {
  std::vector<int> fds;
  const std::string end = Store::tables;
  for (const auto& dir : dirs) {
    DIR* d = opendir(dir.c_str());
    for (dirent* e; (e = readdir(d));) {
      const std::string name = e->d_name;
      if (name.size() > end.size() && name.substr(name.size() - end.size()) == end) {
        const int fd = open((dir + "/" + name).c_str(), O_RDONLY);
        struct stat is {};
        if (fstat(fd, &is) == 0 && S_ISREG(is.st_mode) && is.st_size >= Store::least) fds.push_back(fd);
      }
    }
    closedir(d);
  }
  for (;; evictions++) {
    for (int fd : fds) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    std::this_thread::sleep_for(milliseconds(2));
  }
}

static double cpu_ns() {
  rusage used;
  getrusage(RUSAGE_THREAD, &used);
  const auto of = [](const timeval& t) { return 1e9 * t.tv_sec + 1e3 * t.tv_usec; };
  return of(used.ru_utime) + of(used.ru_stime);
}

static void cost(const std::string& dir, uint64_t keys) {
  struct Kind {
    const char* name;
    bool may_refuse;
    microseconds limit;
    std::vector<double> ns;
  };
  Kind kinds[] = {{"own", false, {}, {}}, {"without_deadline", true, {}, {}}, {"with_deadline", true, hours(1), {}}};
  for (int round = 0; round < 10; round++) {
    for (Kind& kind : kinds) {
      const auto store = Store::opened(dir, kind.may_refuse);
      store->read_all();
      std::mt19937_64 rng(round);
      const int gets = 20000;
      const double begun = cpu_ns();
      for (int i = 0; i < gets; i++) store->get(key(rng() % keys), kind.limit);
      kind.ns.push_back((cpu_ns() - begun) / gets);
    }
  }
  for (Kind& kind : kinds) {
    std::sort(kind.ns.begin(), kind.ns.end());
    printf("cpu time of a get from memory, %s: median %.0f ns, %.0f to %.0f\n", kind.name, kind.ns[5], kind.ns[0], kind.ns[9]);
  }
}

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "fill") {
    Store::fill(argv[2], strtoull(argv[3], nullptr, 10), std::string(1000, 'v'));
    return 0;
  }
  if (argc == 4 && std::string(argv[1]) == "cost") {
    cost(argv[2], strtoull(argv[3], nullptr, 10));
    return 0;
  }
  if (argc != 9) return 2;
  const std::string strategy = argv[1];
  const auto seconds_long = seconds(atoi(argv[2]));
  const auto limit = microseconds(atoll(argv[3]));
  std::mt19937_64 rng(strtoull(argv[4], nullptr, 10));
  const uint64_t keys = strtoull(argv[5], nullptr, 10);
  const std::vector<std::string> dirs(argv + 6, argv + 9);
  std::vector<std::unique_ptr<Store>> stores;
  for (const auto& dir : dirs) stores.push_back(Store::opened(dir, strategy == "mitt" || Store::maps));
  // Everything has been read once: evictions follow, not first reads.
  std::vector<std::thread> readers;
  for (const auto& store : stores) readers.emplace_back([&store] { store->read_all(); });
  for (auto& reader : readers) reader.join();
  std::thread(evict, dirs).detach();
  std::vector<std::unique_ptr<Replica>> replicas;
  for (const auto& store : stores) replicas.emplace_back(new Replica(store.get()));
  std::vector<int64_t> took;
  uint64_t busy = 0, again = 0;
  printf("ready\n");
  fflush(stdout);
  const auto end = steady_clock::now() + seconds_long;
  while (steady_clock::now() < end) {
    const std::string k = key(rng() % keys);
    const size_t first = rng() % 3;
    const auto begun = steady_clock::now();
    if (strategy == "mitt") {
      for (size_t i = 0; i < 3 && !stores[(first + i) % 3]->get(k, i < 2 ? limit : microseconds::zero()); i++) busy++;
    } else {
      auto a = std::make_shared<Answer>();
      get_async(*replicas[first], k, a);
      if (strategy == "hedged" && !wait(*a, limit)) {
        again++;
        get_async(*replicas[(first + 1) % 3], k, a);
      }
      for (size_t i = 1; strategy == "timeout" && i < 3 && !wait(*a, limit); i++) {
        again++;
        a = std::make_shared<Answer>();
        get_async(*replicas[(first + i) % 3], k, a);
      }
      wait(*a, hours(1));
    }
    took.push_back(duration_cast<microseconds>(steady_clock::now() - begun).count());
  }
  std::sort(took.begin(), took.end());
  const auto q = [&](double p) { return took[std::min(took.size() - 1, static_cast<size_t>(p * took.size()))]; };
  printf("{\"strategy\":\"%s\",\"gets\":%zu,\"p50_us\":%lld,\"p90_us\":%lld,\"p95_us\":%lld,\"p99_us\":%lld,\"busy\":%llu,\"again\":%llu,\"evictions\":%llu}\n",
         strategy.c_str(), took.size(), (long long)q(.5), (long long)q(.9), (long long)q(.95), (long long)q(.99),
         (unsigned long long)busy, (unsigned long long)again, (unsigned long long)evictions.load());
  fflush(stdout);
  _exit(0);
}

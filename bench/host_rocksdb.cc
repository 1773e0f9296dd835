// Gets of three RocksDB replicas by one of several strategies; prints percentiles. Built and run by bench/host_rocksdb.py.
//
// usage: host_rocksdb fill DIR KEYS | host_rocksdb STRATEGY SECONDS LIMIT_US SEED KEYS DIR DIR DIR
// STRATEGY: base (one replica, wait), timeout (give up after LIMIT_US, ask the next), hedged (ask a second after LIMIT_US, take the
// first answer), mitt (io_timeout of LIMIT_US: Busy, ask the next; the third without a deadline).
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/file_system.h>
#include <rocksdb/table.h>

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
#include <unistd.h>

using namespace std::chrono;
using rocksdb::DB;

static std::string key(uint64_t n) {
  char text[32];
  snprintf(text, sizeof text, "key%012llu", static_cast<unsigned long long>(n));
  return text;
}

static void check(const rocksdb::Status& s) {
  if (!s.ok()) {
    fprintf(stderr, "%s\n", s.ToString().c_str());
    exit(1);
  }
}

static rocksdb::Options options(bool plimsoll) {
  rocksdb::Options o;
  o.create_if_missing = true;
  o.compression = rocksdb::kNoCompression;
  o.disable_auto_compactions = true;
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;  // the page cache is what is tested
  table.cache_index_and_filter_blocks = false;
  o.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  if (plimsoll) {
    std::shared_ptr<rocksdb::FileSystem> fs;
    check(rocksdb::FileSystem::CreateFromString(rocksdb::ConfigOptions(), "plimsoll://", &fs));
    static std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(fs);
    o.env = env.get();
  }
  return o;
}

static int fill(const char* dir, uint64_t keys) {
  DB* db;
  check(DB::Open(options(false), dir, &db));
  const std::string value(1000, 'v');
  for (uint64_t i = 0; i < keys; i++) check(db->Put(rocksdb::WriteOptions(), key(i), value));
  check(db->Flush(rocksdb::FlushOptions()));
  check(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr));
  check(db->Close());
  delete db;
  return 0;
}

// Threads that get from one replica.
class Replica {
 public:
  explicit Replica(DB* db) : db_(db) {
    for (int i = 0; i < 8; i++) std::thread([this] { serve(); }).detach();
  }
  void ask(std::function<void(DB*)> job) {
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
      job(db_);
    }
  }
  DB* db_;
  std::mutex m_;
  std::condition_variable c_;
  std::deque<std::function<void(DB*)>> jobs_;
};

struct Answer {
  std::mutex m;
  std::condition_variable c;
  bool done = false;
};

static void get_async(Replica& r, const std::string& k, std::shared_ptr<Answer> a) {
  r.ask([k, a](DB* db) {
    std::string v;
    check(db->Get(rocksdb::ReadOptions(), k, &v));
    std::lock_guard<std::mutex> l(a->m);
    a->done = true;
    a->c.notify_all();
  });
}

static bool wait(Answer& a, microseconds limit) {
  std::unique_lock<std::mutex> l(a.m);
  return a.c.wait_for(l, limit, [&] { return a.done; });
}

// Memory pressure from elsewhere: what was read is dropped from the page cache all the time.
static void evict(const std::vector<std::string>& dirs) {
  std::vector<int> fds;
  for (const auto& dir : dirs) {
    DIR* d = opendir(dir.c_str());
    for (dirent* e; (e = readdir(d));) {
      const std::string name = e->d_name;
      if (name.size() > 4 && name.substr(name.size() - 4) == ".sst") fds.push_back(open((dir + "/" + name).c_str(), O_RDONLY));
    }
    closedir(d);
  }
  for (;;) {
    for (int fd : fds) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    std::this_thread::sleep_for(milliseconds(2));
  }
}

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "fill") return fill(argv[2], strtoull(argv[3], nullptr, 10));
  if (argc != 9) return 2;
  const std::string strategy = argv[1];
  const auto seconds_long = seconds(atoi(argv[2]));
  const auto limit = microseconds(atoll(argv[3]));
  std::mt19937_64 rng(strtoull(argv[4], nullptr, 10));
  const uint64_t keys = strtoull(argv[5], nullptr, 10);
  std::vector<std::string> dirs(argv + 6, argv + 9);
  std::vector<DB*> dbs;
  for (const auto& dir : dirs) {
    DB* db;
    check(DB::OpenForReadOnly(options(strategy == "mitt"), dir, &db));
    dbs.push_back(db);
  }
  // Everything has been read once: what follows are evictions, not first reads.
  for (DB* db : dbs) {
    std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(rocksdb::ReadOptions()));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
    }
    for (uint64_t i = 0; i < keys; i += 3) {
      std::string v;
      check(db->Get(rocksdb::ReadOptions(), key(i), &v));
    }
  }
  std::thread(evict, dirs).detach();
  std::vector<std::unique_ptr<Replica>> replicas;
  for (DB* db : dbs) replicas.emplace_back(new Replica(db));
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
      for (size_t i = 0; i < 3; i++) {
        rocksdb::ReadOptions o;
        if (i < 2) o.io_timeout = limit;
        std::string v;
        const rocksdb::Status s = dbs[(first + i) % 3]->Get(o, k, &v);
        if (!s.IsBusy()) {
          check(s);
          break;
        }
        busy++;
      }
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
  printf("{\"strategy\":\"%s\",\"gets\":%zu,\"p50_us\":%lld,\"p90_us\":%lld,\"p95_us\":%lld,\"p99_us\":%lld,\"busy\":%llu,\"again\":%llu}\n",
         strategy.c_str(), took.size(), (long long)q(.5), (long long)q(.9), (long long)q(.95), (long long)q(.99),
         (unsigned long long)busy, (unsigned long long)again);
  fflush(stdout);
  _exit(0);
}

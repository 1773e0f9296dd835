// PostgreSQL's hot standbys for bench/host_replicas.h. A folder of theirs is a database's, DATA/base/NUMBER. Queries with a limit go to back ends
// of the role `app`, whose reads have a deadline, and others to those of `patient`. Each result is compared with the value that the
// key should have.
#include "host_replicas.h"

#include <libpq-fe.h>

#include <fstream>
#include <map>

namespace {

// Two rows fit into a page.
constexpr int REPEATED = 240;

[[noreturn]] void fail(const std::string& what, const char* why) {
  fprintf(stderr, "%s: %s\n", what.c_str(), why);
  exit(1);
}

// Where the server of a database's folder listens.
std::string server(const std::string& dir) {
  std::ifstream file(dir + "/../../postmaster.pid");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  if (lines.size() < 5) fail(dir, "no server runs there");
  return "dbname=postgres port=" + lines[3] + " host=" + lines[4];
}

void must(PGconn* connection, PGresult* result, ExecStatusType expected) {
  if (PQresultStatus(result) != expected) fail("a statement", PQerrorMessage(connection));
  PQclear(result);
}

class Postgres : public Store {
 public:
  Postgres(const std::string& dir, bool may_refuse) : server_(server(dir)), may_refuse_(may_refuse) {}

  bool get(const std::string& key, microseconds limit) override {
    const bool is_app = limit != microseconds::zero();
    PGconn* const connection = take(is_app);
    const char* const values[] = {key.c_str()};
    PGresult* const result = PQexecPrepared(connection, "get", 1, values, nullptr, nullptr, 0);
    const bool is_read = PQresultStatus(result) == PGRES_TUPLES_OK;
    if (is_read) {
      const std::string expected = repeated(key);
      if (PQntuples(result) != 1 || expected != PQgetvalue(result, 0, 0)) fail(key, "another value than was written");
    } else {
      const std::string error = PQerrorMessage(connection);
      const bool is_busy = error.find("could not read block") != error.npos && error.find("Device or resource busy") != error.npos;
      if (!is_app || !is_busy) fail(key, error.c_str());
    }
    PQclear(result);
    give_back(is_app, connection);
    return is_read;
  }

  // Opens and warms as many connections as a strategy needs: one by one for deadlines, eight threads otherwise.
  void read_all() override {
    std::vector<PGconn*> opened;
    for (int i = 0; i < (may_refuse_ ? 1 : 8); i++) opened.push_back(open(false));
    must(opened[0], PQexec(opened[0], "SELECT max(length(v)) FROM t"), PGRES_TUPLES_OK);
    for (PGconn* connection : opened) give_back(false, connection);
    if (may_refuse_) give_back(true, open(true));
  }

  static std::string repeated(const std::string& key) {
    std::string value;
    for (int i = 0; i < REPEATED; i++) value += key;
    return value;
  }

 private:
  PGconn* open(bool is_app) const {
    PGconn* const connection = PQconnectdb((server_ + (is_app ? " user=app" : " user=patient")).c_str());
    if (PQstatus(connection) != CONNECTION_OK) fail(server_, PQerrorMessage(connection));
    must(connection, PQprepare(connection, "get", "SELECT v FROM t WHERE k = $1", 1, nullptr), PGRES_COMMAND_OK);
    // The first run reads the catalogs.
    const char* const values[] = {"none"};
    must(connection, PQexecPrepared(connection, "get", 1, values, nullptr, nullptr, 0), PGRES_TUPLES_OK);
    return connection;
  }

  PGconn* take(bool is_app) {
    std::unique_lock<std::mutex> l(m_);
    auto& free = free_[is_app];
    if (free.empty()) {
      l.unlock();
      return open(is_app);
    }
    PGconn* const connection = free.back();
    free.pop_back();
    return connection;
  }

  void give_back(bool is_app, PGconn* connection) {
    std::lock_guard<std::mutex> l(m_);
    free_[is_app].push_back(connection);
  }

  const std::string server_;
  const bool may_refuse_;
  std::mutex m_;
  std::map<bool, std::vector<PGconn*>> free_;
};

}  // namespace

// The table of keys alone. Files that the recovery changes have dirty pages, and each advice on these takes milliseconds.
const char* const Store::tables = "";
const off_t Store::least = 16 << 20;
const bool Store::maps = false;

std::unique_ptr<Store> Store::opened(const std::string& dir, bool may_refuse) {
  return std::unique_ptr<Store>(new Postgres(dir, may_refuse));
}

void Store::fill(const std::string& dir, uint64_t keys, const std::string&) {
  PGconn* const connection = PQconnectdb((server(dir) + " user=root").c_str());
  if (PQstatus(connection) != CONNECTION_OK) fail(dir, PQerrorMessage(connection));
  must(connection, PQexec(connection, "CREATE TABLE t (k text, v text); ALTER TABLE t ALTER v SET STORAGE PLAIN"), PGRES_COMMAND_OK);
  must(connection, PQexec(connection, "COPY t FROM STDIN"), PGRES_COPY_IN);
  for (uint64_t i = 0; i < keys; i++) {
    const std::string line = key(i) + "\t" + Postgres::repeated(key(i)) + "\n";
    if (PQputCopyData(connection, line.data(), static_cast<int>(line.size())) != 1) fail("COPY", PQerrorMessage(connection));
  }
  if (PQputCopyEnd(connection, nullptr) != 1) fail("COPY", PQerrorMessage(connection));
  must(connection, PQgetResult(connection), PGRES_COMMAND_OK);
  while (PQgetResult(connection) != nullptr) {
  }
  must(connection, PQexec(connection, "ALTER TABLE t ADD PRIMARY KEY (k)"), PGRES_COMMAND_OK);
  PQfinish(connection);
}

# What a newcomer needs: `make run`, `make test`. What a developer needs besides: `make lint`, `make bench`, `make fuzz`,
# `make soak`. Every target installs what it misses (Debian packages, as root or through sudo).

SHELL := /bin/bash
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
# The clients that the node is tested with, none of them ours; and what the tests mount.
TEST_TOOLS := clang llvm-strip g++ setpriv pkg-config mariadbd redis-server psql fio qemu-img qemu-io qemu-nbd nbdkit nbdcopy nbdinfo nbdfuse nbdsh mkfs.ext4 mkfs.xfs losetup openssl promtool prometheus systemd-analyze db_bench /usr/include/leveldb/env.h /usr/lib/python3/dist-packages/plyvel
TEST_PACKAGES := clang llvm libbpf-dev g++ librocksdb-dev rocksdb-tools libleveldb-dev python3-plyvel pkg-config mariadb-server redis-server postgresql fio qemu-utils nbdkit libnbd-bin python3-libnbd fuse3 e2fsprogs xfsprogs util-linux openssl prometheus systemd
BENCH_TOOLS := qemu-storage-daemon valgrind
BENCH_PACKAGES := qemu-system-common qemu-system-x86 qemu-block-extra valgrind
DATA ?= $(CURDIR)/target/run

.PHONY: ceph texts install-c check audit coverage run demo demo-databases figure test lint bench fuzz sanitize soak chaos busy promises python wheel guest guest-fence failover live peers tune-nginx tune-peers tune-large store-image build-deps test-deps bench-deps shape-real shape-cost shape-mongo tune-web tune-node evidence evidence-live nvme-guest nvme-move nvme-postgres nvme-compare nvme-divert nvmet fronts

# Only what serving needs, without link-time optimisation; the other targets build all commands as shipped.
run: build-deps
	cargo build --profile quick --no-default-features -p plimsoll
	target/quick/plimsoll serve --data $(DATA)

# The same load on storage without promises and with, side by side: a minute.
demo: build-deps
	cargo build --profile quick --no-default-features -p plimsoll
	target/quick/plimsoll demo

# The same with real databases, MariaDB and PostgreSQL on mounted volumes: ten minutes, as root.
demo-databases: build-deps test-deps
	$(call need,sysbench python3,sysbench python3)
	cargo build --release -p plimsoll
	bench/databases.py target/release/plimsoll --rounds 3 --json target/databases.json

# docs/demo.svg, the picture of README.md, and its table, by rounds of the demonstration against nbdkit: ten minutes on a quiet machine.
figure: build-deps test-deps
	cargo build --release -p plimsoll -p plimsoll-lab
	for seed in 1 2 3 4 5; do for without in nbdkit nbdkit-limit; do \
		target/release/plimsoll demo --without $$without --seed $$seed --json target/demo-$$without-$$seed.json >/dev/null || exit 1; done; done
	target/release/plimsoll lab figure target/demo-nbdkit*-[1-5].json --out docs/demo.svg

# Builds once, in one profile; runs the test programs side by side, and says what each took. CONTRIBUTING.md has the tiers.
test: build-deps test-deps
	$(call need,python3,python3)
	tests/run.py -- --locked

# The second pass lints what is different without `tools`, which only one crate has; with -p it would check all dependencies again.
lint: texts
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --no-default-features --all-targets -- -D warnings

# What is checked without a build: seconds.
texts: build-deps
	cargo fmt --all --check
	tests/dependencies.py
	tests/arrows.py
	tests/errors.py
	tests/unused.py
	tests/shadows.py
	tests/words.py
	tests/links.py
	tests/messages.py
	tests/reference.py --check
	tests/run.py --table check
	docs/pictures/draw.py --check

# What to run before each commit: neither root nor servers, under five minutes when only a crate or two has changed.
check: texts
	cargo clippy --locked --workspace --all-targets -- -D warnings
	tests/run.py --tier pure -- --locked

# Rules that cost minutes, so that .ci/run doesn't have them: a node with no more features than it asks for, documentation without
# warnings, known vulnerabilities, every fuzz target for ten seconds. The first run builds what checks.
audit: build-deps
	cargo check --locked -p plimsoll --no-default-features
	RUSTDOCFLAGS=-Dwarnings cargo doc --locked --workspace --no-deps
	@if command -v cargo-audit >/dev/null && [ -d "$${CARGO_HOME:-$$HOME/.cargo}/advisory-db" ]; then cargo audit --no-fetch; \
		else echo "SKIPPED: known vulnerabilities: cargo-audit or its database isn't here (cargo install cargo-audit; cargo audit)"; fi
	fuzz/run.sh 10

# RocksDB's plug-in of host mode, in target/host.
.PHONY: host-rocksdb host-leveldb host-replicas host-replicas-leveldb host-postgres host-pages host-accuracy host-cost host-iocost
host-rocksdb: build-deps test-deps
	cargo build --release --locked -p plimsoll-host-c
	mkdir -p target/host
	g++ -std=c++17 -O2 -Wall -Wextra -fPIC -shared -Icrates/host-c/include -Iintegrations/common integrations/rocksdb/plimsoll_fs.cc \
		-o target/host/libplimsoll_rocksdb.so -Ltarget/release -Wl,-rpath,$(CURDIR)/target/release -lplimsoll_host_c -lrocksdb

# LevelDB's deadlines for unmodified programs, in target/host.
host-leveldb: build-deps test-deps
	cargo build --release --locked -p plimsoll-host-c
	mkdir -p target/host
	g++ -std=c++17 -O2 -Wall -Wextra -fPIC -shared -Icrates/host-c/include -Iintegrations/common integrations/leveldb/plimsoll_env.cc integrations/leveldb/plimsoll_preload.cc \
		-o target/host/libplimsoll_leveldb.so -Ltarget/release -Wl,-rpath,$(CURDIR)/target/release -lplimsoll_host_c -lleveldb -ldl

# Three replicas of RocksDB on this host, one of them noisy at a time, as root: a quarter of an hour.
host-replicas: build-deps test-deps
	cargo build --release --locked -p plimsoll -p plimsoll-host-c
	bench/host_replicas.py rocksdb target/release/plimsoll target/release --json target/host-rocksdb.json

# The same with LevelDB.
host-replicas-leveldb: build-deps test-deps
	cargo build --release --locked -p plimsoll -p plimsoll-host-c
	bench/host_replicas.py leveldb target/release/plimsoll target/release --json target/host-leveldb.json

# The same with three hot standbys of PostgreSQL, whose contents are compared with the primary's in the end.
host-postgres: build-deps test-deps
	$(call need,pg_config /usr/include/postgresql/libpq-fe.h,libpq-dev)
	cargo build --release --locked -p plimsoll -p plimsoll-host-shim
	bench/host_replicas.py postgresql target/release/plimsoll target/release --json target/host-postgres.json

# Replicas of a file whose pages are partly gone from memory: a fifth of one, some of all (MT-E8, MT-E11), as root: five minutes.
host-pages: build-deps test-deps
	cargo build --release --locked -p plimsoll -p plimsoll-host-c
	bench/host_pages.py target/release/plimsoll target/release --json target/host-pages.json

# Forecasts against actual times through each I/O scheduler, under noise, as root: ten minutes.
host-accuracy: build-deps test-deps
	cargo build --release --locked -p plimsoll
	bench/host_accuracy.py target/release/plimsoll --json target/host-accuracy.json

# What host mode costs on the disk of target/, as root: BPF's run time by request, look-ups, refusals: a minute.
host-cost: build-deps
	cargo build --release --locked -p plimsoll-host --example host_cost
	[ -e target/host.data ] || head -c 256M /dev/urandom > target/host.data
	sync target/host.data && target/release/examples/host_cost target/host.data

# Deadlines beside the kernel's io.cost, in an emulated guest with cgroup v2: eight minutes.
host-iocost: build-deps
	$(call need,qemu-system-x86_64 busybox cpio depmod xz gawk nbdkit mkfs.ext4,qemu-system-x86 busybox-static cpio kmod xz-utils gawk nbdkit e2fsprogs)
	cargo build --release --locked -p plimsoll -p plimsoll-host-c
	bench/host_iocost.sh target/release/plimsoll target/release

# The C client into PREFIX, for pkg-config's `plimsoll-client`.
PREFIX ?= /usr/local
install-c: build-deps
	cargo build --release --locked -p plimsoll-client-c
	crates/client-c/install.sh target/release $(PREFIX)

# How much of the code the tests run, as a report in target/coverage: half an hour. No limit is set on it.
coverage: build-deps test-deps
	@command -v cargo-llvm-cov >/dev/null || cargo install --locked cargo-llvm-cov
	cargo llvm-cov --workspace --locked --html --output-dir target/coverage

bench: build-deps test-deps bench-deps
	cargo build --release -p plimsoll
	bench/nbd_peers.py target/release/plimsoll
	bench/simulator.py
	bench/model.py target/release/plimsoll
	bench/logs.py target/release/plimsoll
	cargo test --release -p plimsoll-store --test volumes -- --ignored --nocapture

# Coverage-guided, five minutes a target; see fuzz/README.md.
fuzz: build-deps
	fuzz/run.sh 300

# What has unsafe code or maps memory, under the address sanitizer.
sanitize: build-deps
	tests/sanitize.sh

# Many more kills under load, and power losses in the simulator, than a test run has time for: ten thousand in each phase of the logs.
soak: build-deps test-deps
	PLIMSOLL_CRASH_SEEDS=3200 cargo test --release -p plimsoll-logs --test power -- --nocapture
	PLIMSOLL_ROT_SEEDS=1300 cargo test --release -p plimsoll-logs --test corrupt -- --nocapture
	PLIMSOLL_FUZZ_RUNS=100000 cargo test --release -p plimsoll-logs --test fuzz_smoke -- --nocapture
	PLIMSOLL_CRASH_SEEDS=1000 cargo test --release -p plimsoll-bands --test power -- --nocapture
	PLIMSOLL_CRASH_SEEDS=500 cargo test --release -p plimsoll-pool --test shingled -- --nocapture
	PLIMSOLL_CRASH_SEEDS=5000 cargo test --release -p plimsoll-device --test zones -- --nocapture
	PLIMSOLL_CRASH_SEEDS=1000 cargo test --release -p plimsoll-nvram --test power -- --nocapture
	PLIMSOLL_CRASH_SEEDS=300 cargo test --release -p plimsoll-cache --test power -- --nocapture
	PLIMSOLL_LIVES_SEEDS=5000 cargo test --release -p plimsoll-cache --test lives -- --nocapture
	PLIMSOLL_ROT_SEEDS=3600 cargo test --release -p plimsoll-cache --test rot -- --nocapture
	PLIMSOLL_FAULTY_SEEDS=4000 cargo test --release -p plimsoll-cache --test faulty -- --nocapture
	PLIMSOLL_FUZZ_MOUNTS=200000 cargo test --release -p plimsoll-cache --test fuzz_smoke -- --nocapture
	PLIMSOLL_ROT_SEEDS=60 cargo test --release -p plimsoll-store --test rot -- --nocapture
	PLIMSOLL_CHAOS_SEEDS=5000 cargo test --release -p plimsoll-chaos --test simulated -- --nocapture
	PLIMSOLL_RESOURCES=500 cargo test --release -p plimsoll --test resources -- --nocapture --test-threads 1 --skip planted_mistakes
	cargo test -p plimsoll --test resources -- --ignored --nocapture --exact planted_mistakes_are_found
	PLIMSOLL_SOAK_KILLS=500 cargo test --release -p plimsoll --test crash -- --nocapture
	PLIMSOLL_SOAK_KILLS=500 cargo test --release -p plimsoll --test bands kill_9 -- --nocapture

.PHONY: fs-soak
# The file system: 10,000 losses of power in each journaling mode, 400 seeds of synced operations, 20,000 damaged images: eleven minutes.
fs-soak: build-deps
	PLIMSOLL_FS_SEEDS=400 cargo test --release -p plimsoll-fs --test durable
	PLIMSOLL_FS_CRASHES=10000 cargo test --release -p plimsoll-fs --test crash -- --nocapture
	PLIMSOLL_FS_IMAGES=20000 cargo test --release -p plimsoll-fs --test operations damaged -- --nocapture

.PHONY: fs-conformance
# The file system under two suites of others, as root: POSIX (pjdfstest), 100,000 random operations in each mode (fsx): five minutes.
# In a mount namespace of its own: a namespace that another process makes meanwhile would keep the mounts.
FS_TOOLS := $(CURDIR)/target/fs-tools
fs-conformance: build-deps
	[ -x $(FS_TOOLS)/bin/pjdfstest ] || cargo install --locked --root $(FS_TOOLS) pjdfstest@0.2.2
	[ -x $(FS_TOOLS)/bin/fsx ] || cargo install --locked --root $(FS_TOOLS) fsx@0.3.2
	cargo test --locked -p plimsoll-fs --test conformance --no-run
	$(SUDO) unshare --mount env "PATH=$$PATH" PLIMSOLL_FS_TOOLS=$(FS_TOOLS)/bin \
		cargo test --locked -p plimsoll-fs --test conformance -- --ignored --nocapture --test-threads 1

.PHONY: fs-programs
# Programs on the file system, as root: the tests of PostgreSQL and SQLite, in ordered and manylogs mode; dbench, fio's verification,
# git with a build, in each mode: half an hour. PLIMSOLL_FS_MODES=manylogs chooses one.
fs-programs: build-deps
	$(call need,/usr/lib/postgresql /usr/include/tcl8.6/tcl.h dbench fio git make xz bzip2,postgresql tcl-dev dbench fio git make xz-utils bzip2)
	tests/fs_programs.sh $(FS_TOOLS)
	cargo test --locked -p plimsoll-fs --test programs --no-run
	$(SUDO) unshare --mount --pid --fork --kill-child --mount-proc env "PATH=$$PATH" PLIMSOLL_FS_TOOLS=$(FS_TOOLS) \
		cargo test --locked -p plimsoll-fs --test programs -- --ignored --nocapture --test-threads 1

.PHONY: fs-fuser
# The file system beside an example file system of its FUSE library, on tmpfs. As root; a quarter of an hour.
fs-fuser: build-deps
	$(call need,fio,fio)
	cargo build --release -p plimsoll
	$(SUDO) env "PATH=$$PATH" bench/fs_fuser.py target/release/plimsoll --json target/fs-fuser.json

.PHONY: fs-live
# PostgreSQL's and RocksDB's logs on the file system, beside a reader of it, on a disk modelled in real time. As root; a quarter of an hour.
fs-live: build-deps test-deps
	$(call need,db_bench nbdfuse psql,rocksdb-tools libnbd-bin postgresql)
	cargo build --release --locked -p plimsoll
	$(SUDO) env "PATH=$$PATH" bench/fs_live.py target/release/plimsoll --json target/fs-live.json

.PHONY: fs-ext4
# ext4 on the modelled disk of the lab's ML-E2, for its figures beside ours. As root; minutes.
fs-ext4: build-deps
	$(call need,mkfs.ext4 losetup,e2fsprogs mount)
	cargo test --locked -p plimsoll-fs --test ext4 --no-run
	$(SUDO) env "PATH=$$PATH" cargo test --locked -p plimsoll-fs --test ext4 -- --ignored --nocapture --test-threads 1

# Whole pools drawn from seeds, in the simulator and live (docs/contributing/chaos.md): a quarter of an hour. Prints each live seed and what repeats it.
chaos: build-deps
	PLIMSOLL_CHAOS_SEEDS=$${PLIMSOLL_CHAOS_SEEDS:-2000} cargo test --release -p plimsoll-chaos --test simulated -- --nocapture
	PLIMSOLL_CHAOS_SECONDS=$${PLIMSOLL_CHAOS_SECONDS:-600} cargo test --release -p plimsoll --test chaos -- --nocapture

# How soon a node says busy while its modelled disk's queue is seconds long: half a minute.
busy: build-deps
	cargo bench -p plimsoll --bench busy

# Accepted means kept: reads with a deadline at 50 to 300 % of what devices can do, live; a database beside deep writes
# (docs/guides/cores.md). Two hours on a quiet machine; `cargo bench -p plimsoll --bench promises -- --only CASE` measures one pool. Both parts run
# whatever the first one finds; target/promises.md has its table.
promises: build-deps test-deps
	cargo build --release -p plimsoll
	cargo bench -p plimsoll --bench promises --no-run
	failed=0; set -o pipefail; \
	cargo bench -p plimsoll --bench promises -- --json $(CURDIR)/target/promises.json | tee target/promises.md || failed=1; \
	bench/objectives.py target/release/plimsoll --rounds 3 --json target/objectives.json || failed=1; \
	exit $$failed

# An emulated guest on QEMU's quorum over three nodes, of which one is killed, comes back and is resynced: a minute.
guest: build-deps
	$(call need,qemu-system-x86_64 busybox cpio depmod xz,qemu-system-x86 busybox-static cpio kmod xz-utils)
	cargo build --release -p plimsoll
	tests/guest_quorum.sh target/release/plimsoll

# Four emulated guests on fenced volumes, over a disk and flash modelled in real time: two minutes.
guest-fence: build-deps
	$(call need,qemu-system-x86_64 busybox cpio depmod xz python3,qemu-system-x86 busybox-static cpio kmod xz-utils python3)
	cargo build --release -p plimsoll
	tests/guest_fence.sh target/release/plimsoll

# Linux in an emulated guest as the NVMe/TCP host of two nodes: two minutes.
nvme-guest: build-deps
	$(call need,qemu-system-x86_64 busybox cpio depmod xz fio nbdcopy,qemu-system-x86 busybox-static cpio kmod xz-utils fio libnbd-bin)
	cargo build --release -p plimsoll
	tests/guest_nvme.sh target/release/plimsoll

# Linux in an emulated guest over two gateways of one RBD image, of a fake Ceph, while the pool moves between them: two minutes.
nvme-move: build-deps
	$(call need,qemu-system-x86_64 busybox cpio depmod xz fio python3,qemu-system-x86 busybox-static cpio kmod xz-utils fio python3)
	cargo build --release -p plimsoll
	cargo build -p plimsoll-rbd --example fake_ceph
	tests/guest_nvme_move.sh target/release/plimsoll target/debug/examples/libfake_ceph.so

# PostgreSQL in an emulated guest over one path that refuses late reads: five minutes.
nvme-postgres: build-deps
	$(call need,qemu-system-x86_64 busybox cpio depmod xz mmdebstrap,qemu-system-x86 busybox-static cpio kmod xz-utils mmdebstrap)
	cargo build --release -p plimsoll
	tests/guest_nvme_postgres.sh target/release/plimsoll

# NBD and NVMe/TCP on one volume: requests per second and processor time per request. Two minutes on a quiet machine.
fronts: build-deps
	cargo bench -p plimsoll --bench fronts

# The kernel's NVMe/TCP target and both fronts in one emulated guest: eight minutes.
nvmet: build-deps
	$(call need,qemu-system-x86_64 busybox cpio depmod xz gawk,qemu-system-x86 busybox-static cpio kmod xz-utils gawk)
	cargo build --release -p plimsoll --bin plimsoll
	bench/nvmet_guest.sh target/release/plimsoll "$$(cargo bench -p plimsoll --bench fronts --no-run --message-format=json | grep -o '"executable":"[^"]*fronts[^"]*"' | cut -d'"' -f4)"

# The reads that one refused read diverts to the other path of an emulated guest: three minutes.
nvme-divert: build-deps
	$(call need,qemu-system-x86_64 busybox cpio depmod xz fio gawk,qemu-system-x86 busybox-static cpio kmod xz-utils fio gawk)
	cargo build --release -p plimsoll
	bench/nvme_divert.sh target/release/plimsoll

# RocksDB and fio over two noisy nodes in an emulated guest: refusals, multipath's own policies, NBD, Plimsoll's client. Twelve minutes.
nvme-compare: build-deps
	$(call need,qemu-system-x86_64 busybox cpio depmod xz fio nbdcopy db_bench nbd-client mkfs.ext4 gawk,qemu-system-x86 busybox-static cpio kmod xz-utils fio libnbd-bin rocksdb-tools nbd-client e2fsprogs gawk)
	cargo build --release -p plimsoll
	cargo build --release -p plimsoll-client --example tails
	bench/nvme_guest.sh target/release/plimsoll target/release/examples/tails

# A node over a real Ceph cluster on this host, broken in many ways; then reads while one OSD stops and goes: ten minutes, as root.
ceph: build-deps
	$(call need,ceph-mon ceph-osd ceph-mgr ceph rbd qemu-img qemu-storage-daemon nbdcopy nbdinfo fio,ceph-mon ceph-osd ceph-mgr ceph-common librbd1 qemu-utils qemu-system-common qemu-block-extra libnbd-bin python3-libnbd fio)
	cargo build --release -p plimsoll
	tests/real_ceph.py target/release/plimsoll --json target/ceph.json

# What it costs a client when a node refuses and it goes on to the next.
failover: build-deps
	cargo run --release -p plimsoll-client --example failover_cost

# Three nodes in real time, under two loads with noise: percentiles of base, hedged and mitt side by side, ten minutes.
live: build-deps
	cargo build --release -p plimsoll -p plimsoll-lab
	target/release/plimsoll lab run mittos-live

# Every experiment with ten seeds on this commit, which must have no changes: hours. Goes on where it was broken off; then the pages.
evidence: build-deps
	cargo build --release -p plimsoll-lab
	target/release/plimsoll-lab evidence
	target/release/plimsoll-lab pages

# Figures that need real time or other people's programs: hours. Each prints its own.
evidence-live: live peers promises busy tune-peers tune-nginx tune-web tune-node shape-real shape-cost shape-mongo

# Hit counts of our LRU against libCacheSim's, on the traces of ../shared/data (or name others: TRACES="a.csv.gz …").
peers: build-deps
	@command -v python3 >/dev/null && python3 -m venv --help >/dev/null || { echo "python3 with venv is needed"; exit 1; }
	[ -d target/peers ] || python3 -m venv target/peers
	target/peers/bin/pip install --quiet libcachesim
	cargo build --release -p plimsoll-replay --example lru_hits
	target/peers/bin/python tests/peers/libcachesim_lru.py --ours target/release/examples/lru_hits $(TRACES)

# The tuner on a real nginx, through the shell adapter: two minutes.
tune-nginx: build-deps
	$(call need,nginx curl,nginx-light curl)
	cargo build --release -p plimsoll
	examples/tune/nginx.sh target/release/plimsoll

# The tuner on a real HTTP server over a disk modelled in real time: a quarter of an hour.
tune-web: build-deps
	cargo build --release -p plimsoll
	examples/tune/web.sh target/release/plimsoll

# The tuner on two live nodes, through their control API, under a trace: a quarter of an hour.
tune-node: build-deps
	cargo build --release -p plimsoll
	examples/tune/node.sh target/release/plimsoll

# Real MariaDB and PostgreSQL: P by the tuner interleaved with fixed ones, the pool of threads and PgBouncer beside it: half an hour.
shape-real: build-deps test-deps
	$(call need,pgbouncer python3,pgbouncer python3)
	cargo build --release -p plimsoll -p plimsoll-shape-shim
	bench/shape.py target/release/plimsoll mariadb --rounds 10
	bench/shape.py target/release/plimsoll postgres --rounds 3

# What interception costs (AP-E13): by part in nanoseconds and instructions, and of a real MariaDB's requests: three minutes.
shape-cost: build-deps test-deps
	$(call need,valgrind python3,valgrind python3)
	cargo build --release -p plimsoll -p plimsoll-shape-shim
	cargo build --release -p plimsoll-shape --example gate_cost
	bench/shape_cost.py target/release/plimsoll target/release/examples/gate_cost

# A real server of MongoDB's protocol (SecantusDB) under the shim, with MongoDB's own Python driver: half a minute.
shape-mongo: build-deps
	$(call need,python3,python3 python3-venv)
	[ -d target/peers ] || python3 -m venv target/peers
	target/peers/bin/pip install --quiet secantusdb pymongo
	cargo build --release -p plimsoll -p plimsoll-shape-shim
	target/peers/bin/python tests/peers/mongo_shaped.py target/release/plimsoll

# The Python package as a wheel, in target/wheels. Compilers and servers of this machine's age can use it: no manylinux image is asked for.
wheel: build-deps
	$(call need,python3,python3 python3-venv)
	[ -d target/python ] || python3 -m venv target/python
	target/python/bin/pip install --quiet 'maturin>=1.16,<2'
	rm -rf target/wheels
	CARGO_TARGET_DIR=$(CURDIR)/target/python-build target/python/bin/maturin build --quiet --release --locked \
		--manifest-path bindings/python/Cargo.toml --out target/wheels

# The wheel, installed into an environment of its own, and tested against real nodes.
python: wheel
	cargo build -p plimsoll
	tests/wheel.sh target/debug/plimsoll

# What people would tune with instead, on the same budget: Optuna's TPE and random search against the solver.
tune-peers: build-deps
	$(call need,python3,python3 python3-venv)
	cargo build --release -p plimsoll
	python3 -m venv target/peers && target/peers/bin/pip install -q optuna numpy
	target/peers/bin/python bench/tune_peers.py target/release/plimsoll

# How long the tuner's solver takes: 400 configurations, and the hardest synthetic system.
tune-large: build-deps
	cargo run --release -p plimsoll-tune --example large

# Writes the current on-device format's image beside the older ones: once, by hand, before a new version replaces it. That is
# why the test that does it is ignored otherwise.
store-image: build-deps
	cargo test -p plimsoll-store --test image -- --ignored

define need
	@has() { case $$1 in /*) [ -e $$1 ];; *) command -v $$1 >/dev/null;; esac; }; \
	missing=0; for t in $(1); do has $$t || { echo "installing what has $$t"; missing=1; }; done; \
	if [ $$missing = 1 ]; then $(SUDO) apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $(2) >/dev/null; fi; \
	for t in $(1); do has $$t || { echo "$$t is missing and could not be installed"; exit 1; }; done
endef

build-deps:
	@command -v cargo >/dev/null || { echo "a Rust toolchain (1.95 or later) is needed: none is installed"; exit 1; }
	$(call need,cc,gcc libc6-dev)

test-deps:
	$(call need,$(TEST_TOOLS),$(TEST_PACKAGES))

bench-deps:
	$(call need,$(BENCH_TOOLS),$(BENCH_PACKAGES))

.PHONY: deb package-test
# Debian packages of the node with its commands, of the lab and of the shaper's library, in target/debian.
deb: build-deps
	packaging/build.sh

# The node's package in a guest that boots systemd: installed, reloaded, upgraded, removed; then the shaper's with a MariaDB that AppArmor
# confines. As root; a quarter of an hour beside the build.
package-test: build-deps
	$(call need,qemu-system-x86_64 busybox mmdebstrap cpio depmod xz lintian,qemu-system-x86 busybox-static mmdebstrap cpio kmod xz-utils lintian)
	packaging/test.sh
	packaging/test-shape.sh

.PHONY: docs reference shots
# The documents as a site, in target/docs. Dead links fail, within the pages and to other files.
docs: build-deps
	tests/links.py
	[ -x target/mdbook/bin/mdbook ] || cargo install --quiet --locked --no-default-features --features search --root target/mdbook mdbook --version 0.4.52
	target/mdbook/bin/mdbook build docs

# The pictures of the dashboard and of `plimsoll top`, from a node of the demonstration: a minute beside the build.
shots: build-deps
	$(call need,python3 chromium,python3 chromium fonts-dejavu-core)
	cargo build --profile quick --no-default-features -p plimsoll
	docs/pictures/shots.py target/quick/plimsoll

# Pages that are generated from the code: configuration, API, commands; and the pictures.
reference: build-deps
	tests/reference.py
	docs/pictures/draw.py
	PLIMSOLL_WRITE_DOCS=1 cargo test -p plimsoll --test docs the_reference

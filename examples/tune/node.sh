#!/bin/bash
# Tunes live Plimsoll nodes through their control API (make tune-node): two replicas of a volume on disks modelled in real time, a
# backup that reads on beside one of them, a trace as the load. Parameters: reads' deadline, LoggedWriteSize, slot length,
# CFQ's idle_time; then, with those as found, the fingerprint index's share and when QWin gives cores. TRACE names another trace, RATE
# its pace; PROFILE and EPOCH are seconds.
set -euo pipefail
plimsoll=$(realpath "$1")
PROFILE=${PROFILE:-20} EPOCH=${EPOCH:-20} RATE=${RATE:-1} TRACE=${TRACE:-}
dir=$(mktemp -d)
pids=()
trap 'for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done; wait; rm -rf "$dir"' EXIT

for n in 1 2; do
  mkdir "$dir/$n"
  cat > "$dir/$n/node.toml" <<EOF
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = { file = "p.img", size = "100GiB", model = "hdd-160g-7200" }
sched = "cfq"
depth = 4
cores = 4
[pool.fence]
slots = 2
[pool.logs]
adaptive = false
[pool.cache]
file = "flash.img"
device_size = "256MiB"
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "db"
pool = "p"
size = "20GiB"
tenant = "t"
slots = 1
[[volume]]
name = "backup"
pool = "p"
size = "20GiB"
tenant = "t"
slots = 1
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]
EOF
  "$plimsoll" serve --config "$dir/$n/node.toml" > "$dir/$n/out" 2> "$dir/$n/err" &
  pids+=($!)
done
for n in 1 2; do for _ in $(seq 300); do grep -q serves "$dir/$n/out" && break; sleep 0.1; done; done
uri() { echo "nbd+unix:///$2?socket=$dir/$1/nbd.sock"; }

# A database: 24 reads of 8 KiB and 16 writes of 4 to 16 KiB a second, somewhere; and what reads on, 8 times 256 KiB a second.
if [ -z "$TRACE" ]; then
  TRACE=$dir/db.csv
  awk 'BEGIN { srand(7); print "t_us,dev,op,offset,size,q_us,svc_us,ctx"; for (t = 0; t < 3600e6; t += -25000 * log(1 - rand()))
    { w = rand() < 0.4; printf "%d,0,%s,%d,%d,,,\n", t, w ? "W" : "R", int(rand() * 2400000) * 8192, w ? 4096 * 2 ^ int(rand() * 3) : 8192 } }' > "$TRACE"
fi
awk 'BEGIN { print "t_us,dev,op,offset,size,q_us,svc_us,ctx"; for (i = 0; i < 28800; i++) printf "%d,0,R,%d,262144,,,\n", i * 125000, i * 262144 }' > "$dir/backup.csv"
"$plimsoll" tune load "$(uri 1 backup)" --trace "$dir/backup.csv" > /dev/null &
pids+=($!)

cat > "$dir/apply" <<EOF
#!/bin/bash
# apply DEADLINE LOGGED_WRITE SLOT IDLE_TIME
set -e
for n in 1 2; do
  "$plimsoll" pool set p "logged_write=\$2" "idle=\$4" --control "$dir/\$n/control.sock"
  "$plimsoll" volume deadline db "\$1" --control "$dir/\$n/control.sock"
  "$plimsoll" fence set p --slot "\$3" --control "$dir/\$n/control.sock"
done > /dev/null
EOF
cat > "$dir/measure" <<EOF
#!/bin/bash
# measure SECONDS DEADLINE
if [ "\$2" = none ]; then more=(); else more=(--deadline "\$2"); fi
exec "$plimsoll" tune load "$(uri 1 db)" "$(uri 2 db)" --trace "$TRACE" --rate "$RATE" --seconds "\$1" "\${more[@]}"
EOF
chmod +x "$dir/apply" "$dir/measure"
cat > "$dir/node.toml" <<EOF
[[parameter]]
name = "deadline"
values = ["none", "30ms", "60ms"]
[[parameter]]
name = "logged_write"
values = ["0B", "64KiB"]
[[parameter]]
name = "slot"
values = ["20ms", "60ms"]
[[parameter]]
name = "idle_time"
values = ["0ms", "8ms"]
[graph]
root = "request"
components = ["read", "write"]
[graph.node]
request = { sequence = ["op"] }
op = { condition = ["read", "write"] }
[objective]
minimise = "p99"
[period]
epochs = 4
epoch = "${EPOCH}s"
tolerance = 0.15
[adapter]
apply = "$dir/apply {deadline} {logged_write} {slot} {idle_time}"
measure = "$dir/measure {seconds} {deadline}"
timeout = "60s"
profile_time = "${PROFILE}s"
EOF
figures() { awk -F, '$2 == "request" { print $3 }' | sort -n | awk '{ v[NR] = $1; s += $1 } END { printf "%d requests: mean %.1f, p50 %.1f, p90 %.1f, p99 %.1f ms\n", NR, s / NR, v[int(NR * 0.5)], v[int(NR * 0.9)], v[int(NR * 0.99)] }'; }
echo "untuned (no deadline, 64 KiB, 20 ms, 8 ms):"
"$dir/apply" none 64KiB 20ms 8ms
"$dir/measure" "$((PROFILE * 2))" none | figures
start=(--current deadline=none --current logged_write=64KiB --current slot=20ms --current idle_time=8ms)
"$plimsoll" tune profile "$dir/node.toml" --out "$dir/node.parquet" "${start[@]}"
for goal in mean p50 p90 p99; do "$plimsoll" tune solve "$dir/node.toml" --profile "$dir/node.parquet" --minimise $goal; done
"$plimsoll" tune run "$dir/node.toml" --profile "$dir/node.parquet" --periods 2 || true # an alarm is shown, too
"$plimsoll" tune profile "$dir/node.toml" --screen "${start[@]}"

# The second group, with the first one's best single setting: six more runs instead of six times as many.
best=$("$plimsoll" tune solve "$dir/node.toml" --profile "$dir/node.parquet" --epochs 1 --json)
of() { sed -n "s/.*\"$1\": \"\([^\"]*\)\".*/\1/p" <<< "$best" | head -1; }
deadline=$(of deadline)
"$dir/apply" "$deadline" "$(of logged_write)" "$(of slot)" "$(of idle_time)"
cat > "$dir/apply-more" <<EOF
#!/bin/bash
# apply-more FINGERPRINTS SLACK_LOW: the high threshold is four times the low one
set -e
for n in 1 2; do
  "$plimsoll" pool set p "fingerprints=\$1" "core_slack_low=\$2us" "core_slack_high=\$((\$2 * 4))us" --control "$dir/\$n/control.sock"
done > /dev/null
EOF
chmod +x "$dir/apply-more"
cat > "$dir/more.toml" <<EOF
[[parameter]]
name = "fingerprints"
values = ["10", "50", "100"]
[[parameter]]
name = "slack_us"
values = ["300", "3000"]
[graph]
root = "request"
components = ["read", "write"]
[graph.node]
request = { sequence = ["op"] }
op = { condition = ["read", "write"] }
[objective]
minimise = "p99"
[period]
epochs = 4
epoch = "${EPOCH}s"
tolerance = 0.15
[adapter]
apply = "$dir/apply-more {fingerprints} {slack_us}"
measure = "$dir/measure {seconds} $deadline"
timeout = "60s"
profile_time = "${PROFILE}s"
EOF
more=(--current fingerprints=100 --current slack_us=300)
"$dir/apply-more" 100 300
"$plimsoll" tune profile "$dir/more.toml" --out "$dir/more.parquet" "${more[@]}"
for goal in mean p99; do "$plimsoll" tune solve "$dir/more.toml" --profile "$dir/more.parquet" --minimise $goal; done

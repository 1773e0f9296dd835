#!/bin/bash
# Tunes OpTune's web server for real: files over HTTP, a GDSF memory cache, a disk modelled in real time (make tune-web).
# PROFILE and EPOCH are how long settings are measured, WARM how long before that the cache gets used to each, in seconds; GAP is the
# mean time between two requests.
set -euo pipefail
plimsoll=$(realpath "$1")
PROFILE=${PROFILE:-90} EPOCH=${EPOCH:-30} GAP=${GAP:-40ms} WARM=${WARM:-30}
dir=$(mktemp -d)
"$plimsoll" tune web-server --root "$dir/www" --make 2000 --largest 16MiB --cache 24MiB --listen 127.0.0.1:0 > "$dir/at" &
server=$!
trap 'kill $server 2>/dev/null || true; rm -rf "$dir"' EXIT
for _ in $(seq 300); do [ -s "$dir/at" ] && break; sleep 0.1; done
at=$(sed 's|.*http://||' "$dir/at")
echo "$(cat "$dir/at"), a request every $GAP"

cat > "$dir/web.toml" <<EOF
[[parameter]]
name = "idle_time"
values = ["0ms", "4ms", "8ms", "16ms", "24ms"]
moves = ["disk"]
[[parameter]]
name = "size_exponent"
values = ["0.1", "0.5", "1", "2"]
moves = ["get", "cache"]
[graph]
root = "request"
components = ["parse", "cache", "disk", "reply"]
[graph.node]
request = { sequence = ["parse", "get", "reply"] }
get = { condition = ["cache", "disk"] }
[objective]
minimise = "p99"
[period]
epochs = 5
epoch = "${EPOCH}s"
settle = "5s"
tolerance = 0.1
[adapter]
apply = "$plimsoll tune web-set $at --idle-time {idle_time} --size-exponent {size_exponent}"
measure = "$plimsoll tune web-load $at --gap $GAP --seconds {seconds}"
timeout = "90s"
profile_time = "${PROFILE}s"
warm = "${WARM}s"
EOF
# The cache fills before anything is measured.
"$plimsoll" tune web-set "$at" --idle-time 8ms --size-exponent 1
"$plimsoll" tune web-load "$at" --gap "$GAP" --seconds "$PROFILE" > /dev/null
echo "untuned (idle_time 8 ms, Size = |f|):"
"$plimsoll" tune web-load "$at" --gap "$GAP" --seconds "$((PROFILE * 2))" | awk -F, '$2 == "request" { print $3 } $2 == "get" { n++; h += 1 - $3 } END { printf "%.1f %% hit\n", 100 * h / n > "/dev/stderr" }' |
  sort -n | awk '{ v[NR] = $1; s += $1 } END { printf "%d requests: mean %.1f, p50 %.1f, p90 %.1f, p99 %.1f ms\n", NR, s / NR, v[int(NR * 0.5)], v[int(NR * 0.9)], v[int(NR * 0.99)] }'
"$plimsoll" tune profile "$dir/web.toml" --out "$dir/web.parquet"
for goal in mean p50 p90 p99; do "$plimsoll" tune solve "$dir/web.toml" --profile "$dir/web.parquet" --minimise $goal; done
"$plimsoll" tune run "$dir/web.toml" --profile "$dir/web.parquet" --periods 2
"$plimsoll" tune run "$dir/web.toml" --profile "$dir/web.parquet" --minimise p50 --periods 2

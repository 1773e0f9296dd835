#!/bin/bash
# Tunes a real nginx through the shell adapter: how files are sent, and how much of a connection's time one send may take.
# nginx serves generated files on the loopback address; curl is the load. Needs nginx and curl (make tune-nginx).
set -euo pipefail
plimsoll=$1
dir=$(mktemp -d)
trap 'if [ -f "$dir/pid" ]; then kill "$(cat "$dir/pid")" 2>/dev/null || true; fi; rm -rf "$dir"' EXIT
port=${PORT:-18080}
mkdir "$dir/www"
for i in $(seq 0 39); do head -c $(( (i % 8 == 0 ? 4000 : 40) * 1024 )) /dev/urandom > "$dir/www/$i"; done

cat > "$dir/apply" <<'EOF'
#!/bin/bash
# apply SENDFILE CHUNK GZIP: writes the configuration and (re)loads nginx.
set -e
cd "$(dirname "$0")"
cat > nginx.conf <<CONF
worker_processes 1;
pid $PWD/pid;
error_log $PWD/error.log;
events { worker_connections 256; }
http {
  access_log off;
  client_body_temp_path $PWD/tmp; proxy_temp_path $PWD/tmp; fastcgi_temp_path $PWD/tmp; uwsgi_temp_path $PWD/tmp; scgi_temp_path $PWD/tmp;
  sendfile $1;
  sendfile_max_chunk $2;
  gzip $3; gzip_types *; gzip_comp_level 6;
  server { listen 127.0.0.1:PORT; root $PWD/www; }
}
CONF
sed -i "s/PORT/$PORT/" nginx.conf
if [ -f pid ] && kill -0 "$(cat pid)" 2>/dev/null; then nginx -q -p . -c nginx.conf -s reload; else nginx -q -p . -c nginx.conf; fi
sleep 0.3
EOF

cat > "$dir/measure" <<'EOF'
#!/bin/bash
# measure SECONDS: four clients ask for files; prints request,node,value (ms).
end=$(( $(date +%s%N) + ${1%.*}000000000 ))
client() {
  n=0
  while [ "$(date +%s%N)" -lt "$end" ]; do
    urls=(); for k in $(seq 25); do urls+=(-o /dev/null "http://127.0.0.1:$PORT/$((RANDOM % 40))"); done
    curl -s --compressed -w '%{time_total}\n' "${urls[@]}" | while read -r t; do echo "$t"; done
  done
}
for c in 1 2 3 4; do client & done | awk '{ printf "%d,request,%.6f\n", NR, $1 * 1000 }'
wait
EOF
chmod +x "$dir/apply" "$dir/measure"

cat > "$dir/nginx.toml" <<EOF
[[parameter]]
name = "sendfile"
values = ["on", "off"]
[[parameter]]
name = "chunk"
values = ["64k", "2m"]
[[parameter]]
name = "gzip"
values = ["off", "on"]
[graph]
root = "request"
components = ["request"]
[objective]
minimise = "p99"
[period]
epochs = 3
epoch = "3s"
settle = "1s"
tolerance = 0.2
[adapter]
apply = "PORT=$port $dir/apply {sendfile} {chunk} {gzip}"
measure = "PORT=$port $dir/measure {seconds}"
timeout = "20s"
EOF
"$plimsoll" tune check "$dir/nginx.toml"
"$plimsoll" tune profile "$dir/nginx.toml" --out "$dir/nginx.parquet"
"$plimsoll" tune solve "$dir/nginx.toml" --profile "$dir/nginx.parquet"
"$plimsoll" tune solve "$dir/nginx.toml" --profile "$dir/nginx.parquet" --what-if 'p50 <= 1ms' --what-if 'p50 <= 5ms'
"$plimsoll" tune run "$dir/nginx.toml" --profile "$dir/nginx.parquet" --periods 2

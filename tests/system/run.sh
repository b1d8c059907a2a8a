#!/usr/bin/env bash
# The binary against real parts: a web server (nginx, and python's, which has no ranges) and loop
# devices. Needs root; skips loudly, with exit 0, where that or a program or the kernel fails it.
#
#   tests/system/run.sh [CASE…]        all cases, or those whose names begin like that
#   REFLASH=path/to/reflash            another binary than target/release/reflash
#
# A case is a function case_NAME that runs in a subshell with `set -e`. It may attach loop devices
# and mount things at will: that is undone behind it. Exit 77 with a reason means skipped.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
reflash=$(realpath -m "${REFLASH:-${CARGO_TARGET_DIR:-$root/target}/release/reflash}")
vectors=$root/tests/data/vectors
passed=0 failed=0 skipped=0

# ---- may it run at all ------------------------------------------------------------------------

skip_all() {
    printf 'SKIP  all: %s\n0 passed, 0 failed, 1 skipped\n' "$*"
    exit 0
}

[ "$(id -u)" = 0 ] || skip_all "not root"
PATH=$PATH:/usr/sbin:/sbin
for program in nginx losetup blockdev python3 mount cmp; do
    command -v "$program" >/dev/null || skip_all "no $program"
done
[ -x "$reflash" ] || {
    printf 'FAIL  no binary %s: make all\n' "$reflash"
    exit 1
}

# ---- the scene --------------------------------------------------------------------------------

work=$(mktemp -d -t reflash-system.XXXXXX)
nginx_pid=''

tool() { python3 "$here/tool.py" "$@"; }

# Whatever a case left, the last thing first.
undo_case() {
    local line
    [ -e "$work/undo" ] || return 0
    tac "$work/undo" | while read -r line; do
        $line >/dev/null 2>&1 || true
    done
    rm -f "$work/undo"
}

undo() { echo "$*" >>"$work/undo"; }

cleanup() {
    undo_case
    [ -z "$nginx_pid" ] || kill "$nginx_pid" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Attaches a loop device to a file, with options of losetup before it; its name is in $dev.
attach() {
    [ -e /dev/loop-control ] || mknod /dev/loop-control c 10 237
    for _ in $(seq 20); do
        dev=$(losetup -f)
        [ -b "$dev" ] || mknod "$dev" b 7 "${dev#/dev/loop}"
        if losetup "${@:1:$#-1}" "$dev" "${!#}"; then
            undo losetup -d "$dev"
            return
        fi
        # Somebody else was faster.
        sleep 0.1
    done
    return 1
}

# A loop device of so many bytes full of 0xff, in $dev; its file is $backing.
device() { # SIZE [LOSETUP-OPTION…]
    backing=$(mktemp "$work/backing.XXXXXX")
    undo rm -f "$backing"
    head -c "$1" /dev/zero | tr '\0' '\377' >"$backing"
    attach "${@:2}" "$backing"
}

probe_loop() {
    truncate -s 1M "$work/probe"
    attach "$work/probe"
    undo_case
}

mkdir "$work/www"
chmod 755 "$work"
(probe_loop) >"$work/probe.log" 2>&1 || skip_all "no loop devices: $(tail -n 1 "$work/probe.log")"

old=$work/old.img new=$work/new.img
tool images "$old" "$new" 3145728
size=$(stat -c %s "$new")
cp "$vectors"/bundles/*.rugixb "$work/www/"
pack=yes
if "$reflash" pack "$new" -o "$work/www/new.rugixb" --chunker casync-8 --compression xz:1 \
    >"$work/new.hash" 2>"$work/pack.log"; then
    "$reflash" pack "$new" -o "$work/www/fixed.rugixb" --chunker fixed-4 --compression none \
        >"$work/fixed.hash"
else
    # A build without pack: the golden images in place of our own.
    pack=no
    cp "$vectors/images/old.img" "$old"
    cp "$vectors/images/new.img" "$new"
    size=$(stat -c %s "$new")
    cp "$vectors/bundles/casync8-xz-dedup.rugixb" "$work/www/new.rugixb"
    cp "$vectors/bundles/fixed4-none-dedup-new.rugixb" "$work/www/fixed.rugixb"
    tool field "$vectors/bundles/casync8-xz-dedup.json" bundle-hash >"$work/new.hash"
    tool field "$vectors/bundles/fixed4-none-dedup-new.json" bundle-hash >"$work/fixed.hash"
fi
read -r new_hash <"$work/new.hash"
read -r fixed_hash <"$work/fixed.hash"
bundle_size=$(stat -c %s "$work/www/new.rugixb")
# Space behind the payload: to the next MiB.
room=$(((size / 1048576 + 1) * 1048576))

port=$(tool port)
cat >"$work/nginx.conf" <<CONF
user root;
daemon off;
worker_processes 1;
pid $work/nginx.pid;
error_log $work/nginx.error.log;
events { worker_connections 256; }
http {
    access_log off;
    log_format served '\$connection \$request_method \$status \$http_range \$body_bytes_sent \$uri';
    client_body_temp_path $work/tmp;
    proxy_temp_path $work/tmp;
    fastcgi_temp_path $work/tmp;
    uwsgi_temp_path $work/tmp;
    scgi_temp_path $work/tmp;
    default_type application/octet-stream;
    # It would squeeze everything, for a client that says it may.
    gzip on;
    gzip_types *;
    gzip_min_length 1;
    map \$http_range \$speed { ~^bytes=0- 0; default 4k; }
    limit_conn_zone \$server_port zone=all:1m;
    server {
        listen 127.0.0.1:$port;
        access_log $work/access.log served;
        root $work/www;
        location /few/      { alias $work/www/; keepalive_requests 3; }
        location /noranges/ { alias $work/www/; max_ranges 0; }
        location /slow/     { alias $work/www/; limit_rate \$speed; }
        location /crowded/  { alias $work/www/; limit_conn all 2; limit_rate 400k; }
        location /moved/    { rewrite ^/moved/(.*)\$ /\$1 redirect; }
        location /gone/     { return 410; }
    }
}
CONF
nginx -e "$work/nginx.error.log" -c "$work/nginx.conf" >"$work/nginx.log" 2>&1 &
nginx_pid=$!
url=http://127.0.0.1:$port
tool wait_port "$port" || skip_all "nginx does not start: $(cat "$work"/nginx*.log)"

# ---- helpers of the cases ---------------------------------------------------------------------

skip() {
    echo "$*"
    exit 77
}

fail() {
    echo "$*"
    exit 1
}

# Runs an install that must end with the given exit code. Report in $report, messages in $messages.
report=$work/report messages=$work/messages
# What it is run by, if anything.
under=(env)
install() { # EXIT BUNDLE-URL ARGUMENT…
    local expected=$1 code=0
    shift
    : >"$work/access.log"
    rm -f "$report"
    echo "reflash install $*"
    "${under[@]}" "$reflash" install "$@" --report "$report" --progress none 2>"$messages" || code=$?
    cat "$messages"
    [ "$code" = "$expected" ] || fail "exit $code, expected $expected"
}

# The usual one: the new image, by its hash.
install_new() { # EXIT ARGUMENT…
    install "$1" "$url/new.rugixb" --bundle-hash "$new_hash" "${@:2}"
}

says() {
    grep -qF -- "$1" "$messages" || fail "not said: $1"
}

facts() { tool field "$report" "$@"; }

# The image, and behind it nothing but 0xff up to the end. By the device and by its file: what was
# not synced is missing there only if the machine loses power, but what went astray is seen.
is_exact() { # IMAGE PATH
    local bytes all
    bytes=$(stat -c %s "$1")
    cmp -n "$bytes" "$1" "$2" || fail "$2 is not $1"
    all=$(wc -c <"$2")
    tail -c "+$((bytes + 1))" "$2" | cmp -n "$((all - bytes))" - <(head -c "$((all - bytes))" /dev/zero | tr '\0' '\377') ||
        fail "bytes behind the payload changed on $2"
}

installed() { # [IMAGE]
    blockdev --flushbufs "$dev"
    is_exact "${1:-$new}" "$dev"
    is_exact "${1:-$new}" "$backing"
}

untouched() {
    [ "$(facts target_touched)" = "False " ] || fail "reported as touched"
    is_exact /dev/null "$backing"
}

# Begins with zeros and is no image.
incomplete() {
    cmp -n 4096 "$dev" /dev/zero || fail "the first 4 KiB are not zero"
    ! cmp -s -n "$size" "$new" "$dev" || fail "looks complete"
}

nothing_asked() {
    [ ! -s "$work/access.log" ] || fail "requests were made: $(cat "$work/access.log")"
}

# What nginx saw is what was reported.
log_agrees() {
    local requests connections retries seen
    read -r requests connections retries < <(facts http/requests http/connections http/retries)
    for _ in $(seq 100); do
        # A line is written when a request is over, which the client may know before.
        [ "$(wc -l <"$work/access.log")" -ge "$requests" ] && break
        sleep 0.02
    done
    seen=$(wc -l <"$work/access.log")
    [ "$seen" = "$requests" ] || fail "$seen requests, reported $requests"
    seen=$(cut -d ' ' -f 1 "$work/access.log" | sort -u | wc -l)
    [ "$seen" = "$connections" ] || fail "$seen connections, reported $connections"
    echo "$requests requests, $connections connections, $retries retries"
}

# ---- good runs --------------------------------------------------------------------------------

case_seed_file() {
    device "$room"
    install_new 0 --target "$dev" --seed "$old"
    installed
    log_agrees
    local requests connections fetched
    read -r requests connections fetched < <(facts http/requests http/connections bytes/fetched)
    [ "$connections" -le 8 ] || fail "more connections than workers"
    [ "$fetched" -lt $((bundle_size / 2)) ] || fail "$fetched bytes of $bundle_size fetched"
    local odd
    odd=$(awk '$2 != "GET" || $3 != 206 || $4 !~ /^bytes=[0-9]+-[0-9]+$/' "$work/access.log")
    [ -z "$odd" ] || fail "odd requests: $odd"
}

case_keep_alive() {
    [ $pack = yes ] || skip "this build has no pack, and golden bundles have few blocks"
    device "$room"
    install_new 0 --target "$dev" --seed "$old" --workers 2 --memory 4M
    installed
    log_agrees
    local requests connections
    read -r requests connections < <(facts http/requests http/connections)
    [ "$connections" -le 2 ] || fail "$connections connections of 2 workers"
    [ "$requests" -ge $((5 * connections)) ] || fail "only $requests requests"
}

case_no_seed() {
    device "$room"
    install_new 0 --target "$dev"
    installed
    log_agrees
}

case_sector_4096() {
    device "$room" --sector-size 4096
    [ "$(blockdev --getss "$dev")" = 4096 ] || skip "no sectors of 4096 bytes"
    install_new 0 --target "$dev" --seed "$old"
    installed
    device "$room" --sector-size 4096
    install 0 "$url/fixed.rugixb" --bundle-hash "$fixed_hash" --target "$dev" --seed "$old"
    installed
}

# Payloads that end at, before and behind the ends of sectors, on devices that end with the sector.
case_payload_sizes() {
    [ $pack = yes ] || skip "this build has no pack"
    local bytes sector hash image=$work/image
    for bytes in 1 511 512 513 4095 4096 4097 65536 66048 69631 1048577; do
        tool image "$image" "$bytes"
        hash=$("$reflash" pack "$image" -o "$work/www/sized.rugixb" --chunker fixed-4 --compression none)
        for sector in 512 4096; do
            device $(((bytes + sector - 1) / sector * sector)) --sector-size "$sector"
            install 0 "$url/sized.rugixb" --bundle-hash "$hash" --target "$dev"
            installed "$image"
            undo_case
        done
    done
}

case_regular_file() {
    local target=$work/file
    head -c $((room + 5)) /dev/urandom >"$target"
    install_new 0 --target "$target" --seed "$old"
    cmp "$new" "$target"
    rm "$target"
    install_new 0 --target "$target" --seed "$old"
    cmp "$new" "$target"
    rm "$target"
}

case_symlinks() {
    device "$room"
    ln -sfn "$dev" "$work/link"
    ln -sfn link "$work/chain"
    install_new 0 --target "$work/chain" --seed "$old"
    installed
    [ -L "$work/chain" ] || fail "a link was replaced"
    [ -L "$work/link" ] || fail "a link was replaced"
}

# A partition is larger than the image on it.
case_seed_device() {
    install_new 0 --target "$work/file" --seed "$old"
    local by_file by_device
    by_file=$(facts bytes/fetched)
    rm "$work/file"
    local twice=$work/seed
    cp "$old" "$twice"
    head -c "$(stat -c %s "$old")" /dev/urandom >>"$twice"
    attach -r "$twice"
    local seed=$dev
    device "$room"
    install_new 0 --target "$dev" --seed "$seed"
    installed
    by_device=$(facts bytes/fetched)
    # The old image's last block ends elsewhere now.
    [ "$by_device" -le $((by_file + 65536)) ] || fail "$by_device fetched, with a file $by_file"
    rm "$twice"
}

case_seed_index() {
    local hash seed
    read -r hash < <(tool field "$vectors/bundles/casync8-xz-dedup.json" bundle-hash)
    seed=$vectors/images/old.img=$vectors/index/old.casync-8_sha512-256.rugix-block-index
    device 2097152
    install 0 "$url/casync8-xz-dedup.rugixb" --bundle-hash "$hash" --target "$dev" --seed "$seed"
    installed "$vectors/images/new.img"
    [ "$(facts blocks/fetched)" = "9 " ] || fail "$(facts blocks/fetched)blocks fetched, not 9"
    # An index of other bytes costs a warning and a download, nothing else.
    device 2097152
    install 0 "$url/casync8-xz-dedup.rugixb" --bundle-hash "$hash" --target "$dev" \
        --seed "$new=${seed#*=}"
    installed "$vectors/images/new.img"
    says "warning: seed"
}

case_vectors() {
    local name hash verdict slots slot bytes sum n=0
    while read -r name hash verdict slots; do
        local targets=() devices=()
        for slot in $slots; do
            device 2097152
            targets+=(--slot "${slot%%:*}=$dev")
            devices+=("$dev")
        done
        if [ "$verdict" = refused ]; then
            [ ${#targets[@]} -gt 0 ] || targets=(--target "$work/none")
            install 4 "$url/$name.rugixb" --bundle-hash "$hash" "${targets[@]}"
            [ ! -e "$work/none" ] || fail "a target was made"
            for dev in "${devices[@]}"; do is_exact /dev/null "$dev"; done
        else
            install 0 "$url/$name.rugixb" --bundle-hash "$hash" "${targets[@]}" \
                --insecure-allow-missing-block-index
            log_agrees
            for slot in $slots; do
                IFS=: read -r _ bytes sum <<<"$slot"
                dev=${devices[0]}
                devices=("${devices[@]:1}")
                head -c "$bytes" "$dev" | sha256sum | grep -q "^$sum " || fail "$name on $dev"
                tail -c "+$((bytes + 1))" "$dev" | tr -d '\377' | cmp - /dev/null
            done
        fi
        undo_case
        n=$((n + 1))
    done < <(tool vectors "$vectors/bundles")
    [ "$n" -gt 40 ] || fail "only $n bundles"
}

# ---- the web server's own ways ----------------------------------------------------------------

case_server_closes_after_3_requests() {
    device "$room"
    install 0 "$url/few/new.rugixb" --bundle-hash "$new_hash" --target "$dev" --seed "$old" --workers 2
    installed
    log_agrees
    [ "$(facts http/retries)" = "0 " ] || fail "retries were counted"
}

case_server_redirects() {
    device "$room"
    install 0 "$url/moved/new.rugixb" --bundle-hash "$new_hash" --target "$dev" --seed "$old"
    installed
    log_agrees
    [ "$(grep -c ' 302 ' "$work/access.log")" = 1 ] || fail "redirected more than once"
}

case_server_refuses_crowds() {
    device "$room"
    install 0 "$url/crowded/new.rugixb" --bundle-hash "$new_hash" --target "$dev" --seed "$old" \
        --http-max-retries infinite --http-retry-initial-backoff 50ms --http-retry-max-backoff 100ms
    installed
    log_agrees
}

case_server_has_it_no_more() {
    device "$room"
    install 4 "$url/gone/new.rugixb" --bundle-hash "$new_hash" --target "$dev"
    log_agrees
    [ "$(facts http/requests)" = "1 " ] || fail "asked more than once"
    untouched
    install 4 "$url/nothing" --bundle-hash "$new_hash" --target "$dev"
    untouched
}

case_server_without_ranges() {
    device "$room"
    install 0 "$url/noranges/new.rugixb" --bundle-hash "$new_hash" --target "$dev" --seed "$old"
    installed
    says "ignores ranges"
    log_agrees
}

start_python() {
    python_port=$(tool port)
    python3 -m http.server -b 127.0.0.1 -d "$work/www" "$python_port" >"$work/python.log" 2>&1 &
    undo kill $!
    tool wait_port "$python_port"
    python_url=http://127.0.0.1:$python_port
}

case_python_server() {
    start_python
    device "$room"
    install 0 "$python_url/new.rugixb" --bundle-hash "$new_hash" --target "$dev" --seed "$old"
    installed
    says "ignores ranges"
    [ "$(facts bytes/fetched)" = "$bundle_size " ] || fail "fetched $(facts bytes/fetched)"
    device "$room"
    install 4 "$python_url/new.rugixb" --bundle-hash "$new_hash" --target "$dev" --full-download refuse
    untouched
    device "$room"
    install 0 "$python_url/new.rugixb" --bundle-hash "$new_hash" --target "$dev" --disable-range-queries
    installed
    [ "$(facts http/requests)" = "1 " ] || fail "more than one request"
}

# ---- breaks -----------------------------------------------------------------------------------

# Starts an install, in $running, that takes seconds, and waits until it has written something.
slow_install() { # URL
    "$reflash" install "$1/new.rugixb" --bundle-hash "$new_hash" --target "$dev" --seed "$old" \
        --workers 1 \
        --http-max-retries 2 --http-retry-initial-backoff 10ms --progress none \
        --report "$report" >"$messages" 2>&1 &
    running=$!
    undo kill -9 $running
    for _ in $(seq 250); do
        cmp -s -n 4096 "$dev" /dev/zero && return
        sleep 0.02
    done
    fail "nothing was written in time"
}

case_killed_and_run_again() {
    device "$room"
    slow_install "$url/slow"
    kill -9 "$running"
    wait "$running" || true
    incomplete
    install_new 0 --target "$dev" --seed "$old"
    installed
}

# A server that goes away in the middle and comes back.
case_server_stopped_and_run_again() {
    device "$room"
    local second=$work/second
    local own
    own=$(tool port)
    sed -e "s/:$port;/:$own;/" -e "s,$work/nginx\\.,$second.,g" -e "s,$work/access,$second.access," \
        "$work/nginx.conf" >"$second.conf"
    nginx -e "$second.error.log" -c "$second.conf" &
    local server=$!
    undo kill $server
    tool wait_port "$own"
    slow_install "http://127.0.0.1:$own/slow"
    kill "$server"
    wait "$server" || true
    local code=0
    wait "$running" || code=$?
    cat "$messages"
    [ $code = 3 ] || fail "exit $code, expected 3"
    says "after 3 tries"
    incomplete
    install_new 0 --target "$dev" --seed "$old"
    installed
}

# ---- targets that are refused -----------------------------------------------------------------

case_too_small_by_a_sector() {
    local sector bytes
    for sector in 512 4096; do
        bytes=$(((size + sector - 1) / sector * sector - sector))
        device "$bytes" --sector-size "$sector"
        install 5 "$url/fixed.rugixb" --bundle-hash "$fixed_hash" --target "$dev" --seed "$old"
        says "it has $bytes bytes, the payload needs $size"
        untouched
    done
    # Sizes of compressed blocks show late: then the target stays incomplete.
    bytes=$(((size + 511) / 512 * 512 - 512))
    device "$bytes"
    install_new 5 --target "$dev" --seed "$old"
    says "it has $bytes bytes, the payload needs $size"
    incomplete
    # Just large enough.
    device $((bytes + 512))
    install_new 0 --target "$dev" --seed "$old"
    installed
}

case_read_only_by_losetup() {
    device "$room" -r
    install_new 5 --target "$dev"
    says "read-only"
    nothing_asked
    untouched
}

case_read_only_by_blockdev() {
    device "$room"
    blockdev --setro "$dev"
    install_new 5 --target "$dev"
    says "read-only"
    nothing_asked
    install_new 5 --target "$dev" --force
    untouched
    blockdev --setrw "$dev"
    install_new 0 --target "$dev" --seed "$old"
    installed
}

mounted_device() {
    command -v mkfs.ext4 >/dev/null || skip "no mkfs.ext4"
    device "$1"
    mkfs.ext4 -q "$dev"
    mkdir -p "$work/mnt point"
    mount "$dev" "$work/mnt point" || skip "cannot mount ext4"
    undo umount "$dev"
}

case_mounted() {
    mounted_device "$room"
    local sum
    sum=$(sha256sum <"$backing")
    install_new 5 --target "$dev"
    says "mounted at $work/mnt point"
    nothing_asked
    [ "$sum" = "$(sha256sum <"$backing")" ] || fail "the device changed"
}

case_mounted_by_force() {
    mounted_device "$room"
    mount -o remount,ro "$dev" || skip "cannot remount"
    install_new 0 --target "$dev" --seed "$old" --force
    cmp -n "$size" "$new" "$dev"
}

case_mounted_partition() {
    command -v mkfs.ext4 >/dev/null || skip "no mkfs.ext4"
    device 16777216 -P
    # By hand: the kernel need not know any kind of partition table.
    addpart "$dev" 1 2048 28000 || skip "no partitions on loop devices"
    local part=${dev}p1 numbers
    numbers=$(cat "/sys/block/${dev#/dev/}/${part#/dev/}/dev" 2>/dev/null) ||
        skip "no partitions on loop devices"
    # Without udev nobody makes it.
    if [ ! -b "$part" ]; then
        mknod "$part" b "${numbers%:*}" "${numbers#*:}"
        undo rm -f "$part"
    fi
    mkfs.ext4 -q "$part"
    mkdir -p "$work/mnt"
    mount "$part" "$work/mnt" || skip "cannot mount ext4"
    undo umount "$part"
    install_new 5 --target "$dev"
    says "mounted at $work/mnt"
    nothing_asked
    umount "$part"
    install_new 0 --target "$part" --seed "$old"
    cmp -n "$size" "$new" "$part"
}

case_swap() {
    command -v mkswap >/dev/null || skip "no mkswap"
    device 16777216
    mkswap -q "$dev" 2>/dev/null || mkswap "$dev" >/dev/null
    swapon "$dev" || skip "cannot swap on a loop device"
    undo swapoff "$dev"
    install_new 5 --target "$dev"
    says "swap on $dev"
    nothing_asked
}

case_held_by_a_program() {
    device "$room"
    python3 "$here/tool.py" hold "$dev" >"$work/held" &
    local holder=$!
    undo kill $holder
    for _ in $(seq 100); do
        [ ! -s "$work/held" ] || break
        sleep 0.05
    done
    install_new 5 --target "$dev"
    says "in use by python3 (process $holder)"
    nothing_asked
    untouched
    install_new 0 --target "$dev" --seed "$old" --force
    installed
}

# A loop device on a device holds it.
case_held_by_a_device() {
    device "$room"
    local below=$dev file=$backing
    attach "$below"
    install_new 0 --target "$dev" --seed "$old"
    dev=$below backing=$file
    installed
}

case_missing_device() {
    install_new 5 --target /dev/reflash-nope
    says "/dev/reflash-nope"
    nothing_asked
    [ ! -e /dev/reflash-nope ] || fail "it was created"
    ln -s /dev/reflash-nope "$work/dangling"
    undo rm -f "$work/dangling"
    install_new 5 --target "$work/dangling"
    nothing_asked
    [ ! -e /dev/reflash-nope ] || fail "it was created"
}

case_no_targets_at_all() {
    mkfifo "$work/fifo"
    undo rm -f "$work/fifo"
    for path in /dev/null /dev/zero "$work" "$work/fifo" "$work/none/target"; do
        install_new 5 --target "$path"
        says "$path"
        nothing_asked
    done
}

# Two names of one device are one device.
case_one_device_twice() {
    device 2097152
    ln -sfn "$dev" "$work/link"
    local hash
    read -r hash < <(tool field "$vectors/bundles/two-payloads.json" bundle-hash)
    install 2 "$url/two-payloads.rugixb" --bundle-hash "$hash" --slot boot="$dev" --slot system="$work/link"
    nothing_asked
    untouched
}

case_medium_is_full() {
    mkdir -p "$work/small"
    mount -t tmpfs -o size=1m tmpfs "$work/small" || skip "no tmpfs"
    undo umount "$work/small"
    dev=$work/small/target
    install_new 5 --target "$dev" --seed "$old"
    incomplete
}

# ---- trust ------------------------------------------------------------------------------------

plain=$vectors/payloads/plain.bin
root_cert=$vectors/certs/root.crt

# A board without a battery: what is valid by the build date is, what expired before it is not.
case_clock_of_1970() {
    command -v faketime >/dev/null || skip "no faketime"
    device 65536
    under=(faketime -m --exclude-monotonic '1970-01-02 00:00:00')
    [ "$("${under[@]}" date +%Y)" = 1970 ] || skip "faketime does not work"
    install 4 "$url/signed-expired.rugixb" --target "$dev" --root-cert "$root_cert"
    says "expired on 2021-01-01T00:00:00Z"
    says "the clock here says 1970-01-0"
    untouched
    install 0 "$url/signed-chain.rugixb" --target "$dev" --root-cert "$root_cert"
    installed "$plain"
    under=(faketime -m --exclude-monotonic '2130-01-01 00:00:00')
    install 4 "$url/signed-chain.rugixb" --target "$dev" --root-cert "$root_cert"
    says "and the clock here says 2130-01-01"
}

# Runs a command with another /etc.
with_etc() {
    unshare -m sh -c 'mount --bind "$1" /etc && shift && exec "$@"' sh "$work/etc" "$@"
}

case_configured_roots() {
    rm -rf "${work:?}/etc"
    mkdir -p "$work/etc/reflash/roots.d" "$work/etc/rugix"
    with_etc true 2>/dev/null || skip "no mount namespaces"
    under=(with_etc)
    device 65536
    install 2 "$url/signed-ec.rugixb" --target "$dev"
    says "what makes the bundle trusted?"
    cp "$root_cert" "$work/etc/reflash/roots.d/ours.pem"
    install 0 "$url/signed-ec.rugixb" --target "$dev"
    installed "$plain"
    install 4 "$url/signed-other-ca.rugixb" --target "$dev"
    # The reference's own file counts too.
    cp "$vectors/certs/other.crt" "$work/etc/rugix/"
    printf '[signatures]\nroots = ["/etc/rugix/other.crt"]\n' >"$work/etc/rugix/ctrl.toml"
    install 0 "$url/signed-other-ca.rugixb" --target "$dev"
    with_etc "$reflash" inspect "$url/signed-other-ca.rugixb" | grep -F "/etc/rugix/other.crt" ||
        fail "inspect does not know it"
    # Not passed over when it cannot be used; and a trust option stands in for all of it.
    printf '[signatures]\nroots = ["/etc/rugix/none.crt"]\n' >"$work/etc/rugix/ctrl.toml"
    install 2 "$url/signed-ec.rugixb" --target "$dev"
    says "/etc/rugix/none.crt"
    install 0 "$url/signed-ec.rugixb" --target "$dev" --root-cert "$root_cert"
}
# ---- more of them -----------------------------------------------------------------------------

# shellcheck source=tests/system/devices.sh
. "$here/devices.sh"

# ---- all of them ------------------------------------------------------------------------------

run_case() {
    local name=$1 code started=$SECONDS
    set +e
    (
        set -e
        "case_$name"
    ) >"$work/case.log" 2>&1
    code=$?
    set -e
    undo_case
    case $code in
    0)
        passed=$((passed + 1))
        printf 'PASS  %s (%d s)\n' "$name" $((SECONDS - started))
        ;;
    77)
        skipped=$((skipped + 1))
        printf 'SKIP  %s: %s\n' "$name" "$(tail -n 1 "$work/case.log")"
        ;;
    *)
        failed=$((failed + 1))
        printf 'FAIL  %s\n' "$name"
        tail -n 40 "$work/case.log" | sed 's/^/      /'
        ;;
    esac
}

for name in $(declare -F | sed -n 's/^declare -f case_//p'); do
    wanted=no
    for prefix in "${@:-}"; do
        [[ $name == "$prefix"* ]] && wanted=yes
    done
    [ $wanted = no ] || run_case "$name"
done

printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]

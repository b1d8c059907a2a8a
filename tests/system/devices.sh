# Cases of run.sh, which reads this file: power cuts, in place, read-back, and who is in the way.
# Device-mapper cases skip where the kernel has no such target.

# ---- resume and in place ----------------------------------------------------------------------

# Starts an install onto $dev that takes seconds; returns when it has come so far. Block by block: of long
# spans, or of two workers, all may come at once, in the end.
install_to_percent() { # PERCENT ARGUMENT…
    local at=$((size * $1 / 100 / 4096))
    "$reflash" install "$url/fixed.rugixb" --bundle-hash "$fixed_hash" --target "$dev" \
        --limit-rate 2M --workers 1 --no-merge --progress none "${@:2}" >"$messages" 2>&1 &
    running=$!
    undo kill -9 $running
    for _ in $(seq 1000); do
        cmp -s -n 4096 -i "$((at * 4096))" "$dev" "$new" && return
        sleep 0.01
    done
    fail "it does not get to $1 %"
}

case_resume_after_kill_at_60_percent() {
    local sector kept total fetched
    for sector in 512 4096; do
        device "$room" --sector-size "$sector"
        install_to_percent 60
        kill -9 "$running"
        wait "$running" || true
        incomplete
        blockdev --flushbufs "$dev"
        install 0 "$url/fixed.rugixb" --bundle-hash "$fixed_hash" --target "$dev"
        installed
        log_agrees
        read -r kept total fetched < <(facts blocks/kept blocks/total bytes/fetched)
        echo "$kept of $total kept, $fetched fetched of $size"
        [ $((kept * 2)) -gt "$total" ] || fail "only $kept of $total blocks kept"
        [ $((fetched * 2)) -lt "$size" ] || fail "$fetched bytes fetched"
    done
}

case_resume_at_many_instants() {
    device "$room"
    local n
    for n in $(seq 40); do
        "$reflash" install "$url/new.rugixb" --bundle-hash "$new_hash" --target "$dev" \
            --limit-rate 20M --progress none >"$messages" 2>&1 &
        running=$!
        sleep "0.$(printf %03d $((RANDOM % 150)))"
        kill -9 $running 2>/dev/null || true
        wait $running || true
        cmp -s -n 4096 "$dev" "$new" || continue
        # It was complete, so it must be so entirely. The next one begins with damage.
        cmp -n "$size" "$new" "$dev" || fail "it looks complete and is not"
        dd if=/dev/urandom of="$dev" bs=64k seek=$((RANDOM % 40)) count=5 conv=notrunc status=none
        dd if=/dev/zero of="$dev" bs=4k count=1 conv=notrunc status=none
    done
    install_new 0 --target "$dev"
    installed
}

case_current_is_left_alone() {
    local sector
    for sector in 512 4096; do
        device "$room" --sector-size "$sector"
        install_new 0 --target "$dev" --seed "$old"
        installed
        blockdev --setro "$dev"
        blockdev --setrw "$dev"
        local before
        before=$(cat "/sys/block/${dev#/dev/}/stat" | awk '{ print $7 }')
        install_new 0 --target "$dev"
        [ "$(facts result target_touched bytes/written)" = "current False 0 " ] || fail "written to"
        [ "$before" = "$(awk '{ print $7 }' "/sys/block/${dev#/dev/}/stat")" ] || fail "sectors written"
        installed
        log_agrees
    done
}

# The old image is on the target, and there is no other seed.
case_in_place() {
    local bundle hash fetched whole
    for bundle in new fixed; do
        [ $bundle = new ] && hash=$new_hash || hash=$fixed_hash
        device "$room"
        dd if="$old" of="$dev" bs=1M conv=notrunc,fsync status=none
        install 0 "$url/$bundle.rugixb" --bundle-hash "$hash" --target "$dev"
        installed
        log_agrees
        fetched=$(facts bytes/fetched)
        whole=$(stat -c %s "$work/www/$bundle.rugixb")
        echo "$bundle: $fetched bytes of $whole"
        # An insertion shifts all pages behind it, so `fixed` reuses only what is before.
        [ $bundle = fixed ] || [ $((fetched * 10)) -lt $((whole * 6)) ] || fail "$fetched of $whole fetched"
    done
}

# ---- read-back ----------------------------------------------------------------------------------

# The device's file changes below the cache of the device.
case_verify_reads_the_medium() {
    device "$room"
    install_new 0 --target "$dev" --seed "$old" --verify
    installed
    cat "$dev" >/dev/null
    "$reflash" verify "$url/new.rugixb" --bundle-hash "$new_hash" --target "$dev" || fail "exit $?"
    printf 'x' | dd of="$backing" bs=1 seek=1500000 conv=notrunc status=none
    local code=0
    "$reflash" verify "$url/new.rugixb" --bundle-hash "$new_hash" --target "$dev" --json \
        >"$report" 2>"$messages" || code=$?
    cat "$report" "$messages"
    [ $code = 5 ] || fail "exit $code"
    says "differs from the image"
    local start end
    read -r start end < <(python3 -c '
import json, sys
region = json.load(open(sys.argv[1]))["targets"][0]["regions"][0]
print(region["start"], region["end"])' "$report")
    [ "$start" -le 1500000 ] && [ "$end" -gt 1500000 ] || fail "named $start..$end"
    # The same command mends it.
    blockdev --flushbufs "$dev"
    install_new 0 --target "$dev" --verify
    installed
}

case_discard() {
    device "$room"
    install_new 0 --target "$dev" --seed "$old" --discard
    installed
    # With zeros in the image: written, whatever the device makes of a discard.
    truncate -s "$size" "$work/zeros"
    undo rm -f "$work/zeros"
    [ $pack = yes ] || skip "this build has no pack"
    local hash
    hash=$("$reflash" pack "$work/zeros" -o "$work/www/zeros.rugixb" --chunker fixed-4)
    device "$room"
    install 0 "$url/zeros.rugixb" --bundle-hash "$hash" --target "$dev" --discard
    installed "$work/zeros"
}

case_write_index() {
    device "$room"
    install_new 0 --target "$dev" --write-index "$work/index"
    undo rm -f "$work/index"
    local seed=$dev
    device "$room"
    install_new 0 --target "$dev" --seed "$seed=$work/index"
    installed
    says_nothing warning
    local fetched
    fetched=$(facts blocks/fetched)
    [ "$fetched" = "0 " ] || fail "$fetched blocks fetched"
}

# ---- in the way -----------------------------------------------------------------------------------

says_nothing() {
    ! grep -qF -- "$1" "$messages" || fail "said: $1"
}

case_held_by_a_loop_device() {
    device "$room"
    local below=$dev file=$backing
    attach "$below"
    local above=$dev
    install_new 5 --target "$below"
    says "held by ${above#/dev/}"
    nothing_asked
    is_exact /dev/null "$file"
    # So does one on a file.
    install_new 5 --target "$file"
    says "held by ${below#/dev/}"
    nothing_asked
}

# Also by force: it would be written over while it is read.
case_bundle_on_the_target() {
    command -v mkfs.ext4 >/dev/null || skip "no mkfs.ext4"
    device 33554432
    mkfs.ext4 -q "$dev"
    mkdir -p "$work/mnt"
    mount "$dev" "$work/mnt" || skip "cannot mount ext4"
    undo umount "$dev"
    cp "$work/www/new.rugixb" "$work/mnt/new.rugixb"
    install 5 "$work/mnt/new.rugixb" --bundle-hash "$new_hash" --target "$dev" --force
    says "new.rugixb is stored on it"
    install 5 "$work/mnt/new.rugixb" --bundle-hash "$new_hash" --target "$dev"
    says "mounted at $work/mnt"
    # As raw bytes.
    device "$room"
    dd if="$work/www/new.rugixb" of="$dev" bs=1M conv=notrunc,fsync status=none
    install 5 "$dev" --bundle-hash "$new_hash" --target "$dev"
    says "it is the bundle itself"
}

case_seed_is_the_target() {
    device "$room"
    ln -sfn "$dev" "$work/link"
    undo rm -f "$work/link"
    install_new 2 --target "$dev" --seed "$work/link"
    says "is the target"
    nothing_asked
}

# A disk with two partitions: the seed on one, the target the other, by the name of the disk.
partitioned() {
    device 33554432 -P
    addpart "$dev" 1 2048 20000 && addpart "$dev" 2 30000 20000 || skip "no partitions on loop devices"
    local n numbers
    for n in 1 2; do
        numbers=$(cat "/sys/block/${dev#/dev/}/${dev#/dev/}p$n/dev" 2>/dev/null) ||
            skip "no partitions on loop devices"
        [ -b "${dev}p$n" ] || {
            mknod "${dev}p$n" b "${numbers%:*}" "${numbers#*:}"
            undo rm -f "${dev}p$n"
        }
    done
}

case_whole_disk_as_seed() {
    partitioned
    local disk=$dev
    # At an offset, and in the target itself: that part changes while it is read.
    dd if="$old" of="${disk}p1" bs=1M conv=notrunc,fsync status=none
    dd if="$old" of="${disk}p2" bs=1M conv=notrunc,fsync status=none
    install_new 0 --target "${disk}p2" --seed "$disk"
    cmp -n "$size" "$new" "${disk}p2"
    says_nothing "is not what it should be"
    local fetched
    fetched=$(facts bytes/fetched)
    [ "$fetched" -lt $((bundle_size / 2)) ] || fail "$fetched bytes of $bundle_size fetched"
    # The other way round the seed would be written over.
    install_new 0 --target "$disk" --seed "${disk}p1"
    says "a part of a target"
    cmp -n "$size" "$new" "$disk"
}

case_partition_table_is_looked_at() {
    command -v sfdisk >/dev/null || skip "no sfdisk"
    [ $pack = yes ] || skip "this build has no pack"
    truncate -s 4M "$work/disk.img"
    undo rm -f "$work/disk.img"
    echo 'start=2048, size=2048, type=83' | sfdisk -q "$work/disk.img"
    local hash
    hash=$("$reflash" pack "$work/disk.img" -o "$work/www/disk.rugixb" --chunker fixed-64)
    device 8388608 -P
    install 0 "$url/disk.rugixb" --bundle-hash "$hash" --target "$dev"
    is_exact "$work/disk.img" "$dev"
    says_nothing "partition table"
    # What cannot be done about it is a warning, and the install a success.
    device 8388608 -P
    PATH=$work/none "$reflash" install "$url/disk.rugixb" --bundle-hash "$hash" --target "$dev" \
        2>"$messages" || fail "exit $?"
    is_exact "$work/disk.img" "$dev"
    says "may still have the old partition table of $dev"
    # A device that has no partitions is not asked for them.
    device 8388608
    PATH=$work/none "$reflash" install "$url/disk.rugixb" --bundle-hash "$hash" --target "$dev" \
        2>"$messages" || fail "exit $?"
    is_exact "$work/disk.img" "$dev"
    says_nothing "partition table"
}

case_swap_file() {
    command -v mkswap >/dev/null || skip "no mkswap"
    dd if=/dev/zero of="$work/swap" bs=1M count=8 status=none
    chmod 600 "$work/swap"
    undo rm -f "$work/swap"
    mkswap -q "$work/swap" 2>/dev/null || mkswap "$work/swap" >/dev/null
    swapon "$work/swap" 2>/dev/null || skip "no swap files here"
    undo swapoff "$work/swap"
    install_new 5 --target "$work/swap"
    says "swap file"
    nothing_asked
}

case_medium_is_full_and_named() {
    mkdir -p "$work/small"
    mount -t tmpfs -o size=1m tmpfs "$work/small" || skip "no tmpfs"
    undo umount "$work/small"
    dev=$work/small/target
    install_new 5 --target "$dev" --seed "$old"
    says "file system that it is on is full"
    incomplete
}

# A seed that was mounted once since its index was made differs in a few blocks.
case_seed_was_mounted() {
    command -v mkfs.ext4 >/dev/null || skip "no mkfs.ext4"
    [ $pack = yes ] || skip "this build has no pack"
    device 16777216
    mkfs.ext4 -q "$dev"
    mkdir -p "$work/mnt"
    mount "$dev" "$work/mnt" || skip "cannot mount ext4"
    cp "$old" "$work/mnt/"
    umount "$dev"
    local seed=$dev hash
    hash=$("$reflash" pack "$seed" -o "$work/www/mounted.rugixb" --chunker casync-8 --compression none)
    device 16777216
    install 0 "$url/mounted.rugixb" --bundle-hash "$hash" --target "$dev" --write-index "$work/index"
    undo rm -f "$work/index"
    mount "$seed" "$work/mnt"
    touch "$work/mnt/file"
    umount "$seed"
    device 16777216
    install 0 "$url/mounted.rugixb" --bundle-hash "$hash" --target "$dev" --seed "$seed=$work/index"
    local fetched total
    read -r fetched total < <(facts blocks/fetched blocks/total)
    [ $((fetched * 10)) -lt "$total" ] || fail "$fetched of $total blocks fetched"
    [ "$fetched" -gt 0 ] || fail "the mount changed nothing"
}

# Reads of a loop device fail where its file does not go any more.
case_seed_and_bundle_that_cannot_be_read() {
    device 4194304
    dd if="$new" of="$dev" bs=1M conv=notrunc,fsync status=none
    local seed=$dev file=$backing
    device "$room"
    install_new 0 --target "$dev" --write-index "$work/index"
    undo rm -f "$work/index"
    truncate -s 1000000 "$file"
    blockdev --flushbufs "$seed"
    for index in "" "=$work/index"; do
        device "$room"
        install_new 0 --target "$dev" --seed "$seed$index"
        installed
        says "warning: seed $seed"
    done
    device 8388608
    dd if="$work/www/fixed.rugixb" of="$dev" bs=1M conv=notrunc,fsync status=none
    local bundle=$dev
    truncate -s 1000000 "$backing"
    blockdev --flushbufs "$bundle"
    device "$room"
    install 4 "$bundle" --bundle-hash "$fixed_hash" --target "$dev"
    incomplete
}

# The file system below is full: the device says so only when it is synced.
case_device_that_cannot_store() {
    mkdir -p "$work/small"
    mount -t tmpfs -o size=1m tmpfs "$work/small" || skip "no tmpfs"
    undo umount "$work/small"
    truncate -s "$room" "$work/small/backing"
    backing=$work/small/backing
    attach "$backing"
    install_new 5 --target "$dev" --seed "$old"
    says "cannot sync target"
    ! cmp -s -n "$size" "$new" "$dev" || fail "looks complete"
}

# ---- device-mapper ----------------------------------------------------------------------------------

# A device-mapper device of a table, in $dev.
mapped() { # NAME TABLE-LINE…
    local name=reflash-$$-$1
    command -v dmsetup >/dev/null || skip "no dmsetup"
    dmsetup version >/dev/null 2>&1 || skip "the kernel has no device-mapper"
    printf '%s\n' "${@:2}" | dmsetup create "$name" >/dev/null 2>&1 || skip "no dm target for $1"
    undo dmsetup remove --force "$name"
    dmsetup mknodes "$name" >/dev/null 2>&1 || true
    dev=/dev/mapper/$name
}

case_dm_holds_its_device() {
    device "$room"
    local below=$dev sectors=$((room / 512))
    mapped linear "0 $sectors linear $below 0"
    install_new 5 --target "$below"
    says "held by dm-"
    says "reflash-$$-linear"
    nothing_asked
    install_new 0 --target "$dev" --seed "$old"
    cmp -n "$size" "$new" "$dev"
}

case_dm_error_is_fatal() {
    device "$room"
    local below=$dev half=$((room / 1024)) rest=$((room / 512 - room / 1024))
    mapped error "0 $half linear $below 0" "$half $rest error"
    install_new 5 --target "$dev" --seed "$old"
    incomplete
}

case_dm_thin_pool_is_full() {
    device 4194304
    local meta=$dev
    dd if=/dev/zero of="$meta" bs=1M count=4 conv=notrunc status=none
    device 2097152
    local data=$dev
    mapped pool "0 4096 thin-pool $meta $data 128 0 1 error_if_no_space"
    local pool=$dev
    dmsetup message "$pool" 0 "create_thin 0"
    mapped thin "0 $((room / 512)) thin $pool 0"
    install_new 5 --target "$dev" --seed "$old"
    ! cmp -s -n "$size" "$new" "$dev" || fail "looks complete"
}

case_dm_flakey_is_read_back() {
    device "$room"
    local sectors=$((room / 512))
    # Writes are dropped, and nobody is told.
    mapped flakey "0 $sectors flakey $dev 0 0 60 1 drop_writes"
    install_new 5 --target "$dev" --seed "$old" --verify
    says "does not give back what was written"
}

case_dm_delay_has_a_short_last_sync() {
    device "$room"
    mapped delay "0 $((room / 512)) delay $dev 0 20"
    install_new 0 --target "$dev" --seed "$old"
    cmp -n "$size" "$new" "$dev"
    python3 -c 'import json, sys; sys.exit(json.load(open(sys.argv[1]))["seconds"]["sync"] > 10)' "$report" ||
        fail "the last sync took long"
}

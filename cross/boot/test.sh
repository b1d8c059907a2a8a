#!/bin/bash
# Tests of what is in this folder, as far as this machine has the tools: the script in several shells,
# real images built by initramfs-tools and dracut, and the binary found in them. Skips loudly.
#
#   cross/boot/test.sh     REFLASH=BINARY: the static binary to put into the images
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export PATH=$PATH:/usr/sbin:/sbin
work=$(mktemp -d -t reflash-packaging.XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0

pass() { echo "PASS  $*"; }
skip() { echo "SKIP  $*"; }
fail() {
    echo "FAIL  $*"
    failed=$((failed + 1))
}

# ---- the script ---------------------------------------------------------------------------------

# A reflash that writes down how it was called, and ends as the file `codes` says, a line a call.
mkdir "$work/bin"
cat >"$work/bin/reflash" <<'FAKE'
#!/bin/sh
{ printf '%s|' "$@"; echo; } >>"$WORK/calls"
read -r code <"$WORK/codes"
sed -i 1d "$WORK/codes"
exit "$code"
FAKE
chmod +x "$work/bin/reflash"
: >"$work/device"

# script SHELL EXIT CODES CALLS CMDLINE: with this command line it ends with EXIT, has called reflash
# like CALLS (one line each), which ended with CODES.
script() {
    local shell=$1 exit=$2 codes=$3 calls=$4 cmdline=$5 found=0
    printf '%s' "$cmdline" >"$work/cmdline"
    # shellcheck disable=SC2086 # a line a word
    printf '%s\n' $codes >"$work/codes"
    rm -f "$work/calls" "$work/sysrq"
    WORK=$work PATH=$work/bin:$PATH REFLASH_BOOT_CMDLINE=$work/cmdline REFLASH_BOOT_PAUSE=0 \
        REFLASH_BOOT_SYSRQ=$work/sysrq $shell "$here/reflash-boot" ${action:+"$action"} 2>"$work/said" || found=$?
    touch "$work/calls" "$work/sysrq"
    [ "$found" = "$exit" ] || fail "$shell: exit $found and not $exit for: $cmdline"
    [ "$(cat "$work/calls")" = "$calls" ] ||
        fail "$shell: calls for: $cmdline"$'\n'"$(cat "$work/calls")"$'\n'"expected"$'\n'"$calls"
}

scripts() {
    local shell=$1 d=$work/device
    local one="install|http://h/b|--target=$d|"
    script "$shell" 0 '' '' "console=ttyS0 quiet"
    script "$shell" 0 0 "$one" "reflash.bundle=http://h/b reflash.target=$d"
    action=stop script "$shell" 0 0 '' "reflash.bundle=http://h/b reflash.target=$d"
    action=start script "$shell" 0 0 "$one" "reflash.bundle=http://h/b reflash.target=$d"
    # Every argument, in order; a `*` stays one, and a `=` in a value too.
    script "$shell" 0 0 \
        "install|http://h/b?x=1|--slot=a=$d|--seed=$d=index|--bundle-hash=sha256:00|--root-cert=/r/*|--no-merge|" \
        "ro reflash.bundle=http://h/b?x=1 reflash.slot=a=$d reflash.seed=$d=index reflash.hash=sha256:00 reflash.root-cert=/r/* reflash.no-merge quiet"$'\n'
    # The network is tried again, nothing else is.
    script "$shell" 0 '3 3 0' "$one"$'\n'"$one"$'\n'"$one" "reflash.bundle=http://h/b reflash.target=$d"
    script "$shell" 3 '3 3 0' "$one"$'\n'"$one" "reflash.bundle=http://h/b reflash.target=$d reflash.tries=2"
    script "$shell" 0 '3 3 3 3 0' "$one"$'\n'"$one"$'\n'"$one"$'\n'"$one"$'\n'"$one" \
        "reflash.bundle=http://h/b reflash.target=$d reflash.tries=0"
    script "$shell" 4 '4 0' "$one" "reflash.bundle=http://h/b reflash.target=$d reflash.then=reboot"
    [ ! -s "$work/sysrq" ] || fail "$shell: rebooted after a failure"
    # A device that never comes is reflash's to refuse.
    script "$shell" 5 5 "install|b|--target=/dev/none|" "reflash.bundle=b reflash.target=/dev/none reflash.wait=1"
    script "$shell" 0 0 "$one" "reflash.bundle=http://h/b reflash.target=$d reflash.then=reboot"
    [ "$(cat "$work/sysrq")" = b ] || fail "$shell: did not reboot"
    script "$shell" 0 0 "$one" "reflash.bundle=http://h/b reflash.target=$d reflash.then=poweroff"
    [ "$(cat "$work/sysrq")" = o ] || fail "$shell: did not turn off"
    for wrong in reflash.tries= reflash.wait=1s reflash.then=fly; do
        script "$shell" 2 '' '' "reflash.bundle=b reflash.target=$d $wrong"
        grep -q "${wrong%%=*}" "$work/said" || fail "$shell: $wrong is not named: $(cat "$work/said")"
    done
}

for shell in dash 'busybox sh' 'bash --posix'; do
    command -v "${shell%% *}" >/dev/null || {
        skip "reflash-boot in $shell: not here"
        continue
    }
    before=$failed
    scripts "$shell"
    [ "$failed" != "$before" ] || pass "reflash-boot in $shell"
done

# ---- images -------------------------------------------------------------------------------------

export REFLASH_BINARY=${REFLASH:-$root/target/cross/x86_64-unknown-linux-musl/full/reflash}
export REFLASH_BOOT=$here/reflash-boot

# found NAME FOLDER PATH…: these are in the unpacked image; the binary is ours, and runs.
found() {
    local name=$1 folder=$2 path
    shift 2
    for path in usr/bin/reflash usr/bin/reflash-boot "$@"; do
        [ -e "$folder/$path" ] || {
            fail "$name: no $path in the image"
            return
        }
    done
    if cmp "$REFLASH_BINARY" "$folder/usr/bin/reflash" && "$folder/usr/bin/reflash" --version >"$work/version"; then
        pass "$name: $(cat "$work/version") in an image of $(du -h "$work/image" | cut -f1)"
    else
        fail "$name: the binary in the image"
    fi
}

initramfs_tools() {
    command -v mkinitramfs unmkinitramfs >/dev/null || {
        skip "initramfs-tools: not installed"
        return
    }
    [ "$(id -u)" = 0 ] || {
        skip "initramfs-tools: not root"
        return
    }
    cp -R /etc/initramfs-tools "$work/conf"
    mkdir -p "$work/conf/hooks" "$work/conf/scripts/local-top"
    cp "$here/initramfs-tools/hooks/reflash" "$work/conf/hooks/"
    cp "$here/initramfs-tools/scripts/local-top/reflash" "$work/conf/scripts/local-top/"
    # Without modules. It looks for the configuration of the kernel: one in a /boot of its own.
    # shellcheck disable=SC2016 # of the inner shell
    unshare -m sh -c 'mount -t tmpfs none /boot && echo CONFIG_RD_GZIP=y >/boot/config-0.0-none &&
        exec mkinitramfs -c gzip -d "$1" -o "$2" 0.0-none' sh "$work/conf" "$work/image" >"$work/log" 2>&1 || {
        fail "initramfs-tools: $(cat "$work/log")"
        return
    }
    unmkinitramfs "$work/image" "$work/unpacked" 2>>"$work/log"
    local folder=$work/unpacked
    [ ! -d "$folder/main" ] || folder=$folder/main
    found initramfs-tools "$folder" scripts/local-top/reflash
}

dracut_module() {
    command -v dracut >/dev/null || {
        skip "dracut: not installed"
        return
    }
    [ -d /usr/lib/dracut/modules.d/35network-legacy ] || {
        skip "dracut: no network module (dracut-network)"
        return
    }
    # Its modules and ours, without touching the system's.
    mkdir -p "$work/dracut" "$work/unpacked-dracut"
    cp -R /usr/lib/dracut/. "$work/dracut/"
    cp -R "$here/dracut/90reflash" "$work/dracut/modules.d/"
    dracutbasedir=$work/dracut dracut --force --no-kernel --no-hostonly --no-early-microcode --no-compress --nostrip \
        --tmpdir "$work" --modules "base network network-legacy reflash" "$work/image" 0.0-none >"$work/log" 2>&1 || {
        fail "dracut: $(cat "$work/log")"
        return
    }
    (cd "$work/unpacked-dracut" && cpio -idm --quiet <"$work/image")
    found dracut "$work/unpacked-dracut" usr/lib/dracut/hooks/cmdline/90-reflash-cmdline.sh \
        usr/lib/dracut/hooks/initqueue/online/90-reflash-online.sh \
        usr/lib/dracut/hooks/initqueue/settled/90-reflash-settled.sh
}

systemd_unit() {
    command -v systemd-analyze >/dev/null || {
        skip "systemd: not installed"
        return
    }
    # It looks whether the program is there.
    sed "s|^ExecStart=.*|ExecStart=$here/reflash-boot|" "$here/systemd/reflash.service" >"$work/reflash.service"
    if systemd-analyze verify "$work/reflash.service" >"$work/log" 2>&1 && [ ! -s "$work/log" ]; then
        pass "systemd: the unit"
    else
        fail "systemd: $(cat "$work/log")"
    fi
}

# Recipes for what is not here: their rules run as the real thing would run them, for every target that
# `make cross` knows, and they must be of this release.
buildroot() {
    local option=$1 triple=$2
    rm -rf "$work/build" "$work/rootfs"
    mkdir -p "$work/build" "$work/rootfs"
    echo binary >"$work/build/reflash"
    grep -qw "BR2_$option" "$here/buildroot/package/reflash/Config.in" || fail "buildroot: Config.in without $option"
    # But for the copying to @D.
    make -s -f - <<MAKE >"$work/log" 2>&1 || fail "buildroot: $option: $(cat "$work/log")"
BR2_EXTERNAL_REFLASH_PATH := $here/buildroot
BR2_$option := y
INSTALL := install
TARGET_DIR := $work/rootfs
include $here/buildroot/external.mk
.PHONY: all
all: $work/build/rule
$work/build/rule:
	@[ "\$(REFLASH_SITE)" = "$here/buildroot/../../../target/cross/$triple/full" ]
	\$(REFLASH_INSTALL_TARGET_CMDS)
	\$(REFLASH_INSTALL_INIT_SYSTEMD)
	\$(REFLASH_INSTALL_INIT_SYSV)
MAKE
    installed buildroot etc/init.d/S45reflash
}

# Each override by itself: bitbake takes the value of the machine's own, else of its family's.
yocto() {
    local option=$1 triple=$2 recipe
    recipe=$(echo "$here"/yocto/reflash_*.bb)
    rm -rf "$work/rootfs"
    grep -qx "REFLASH_TRIPLE:$option = \"$triple\"" "$recipe" || fail "yocto: $option is not $triple"
    {
        echo "D=$work/rootfs bindir=/usr/bin prefix=/usr systemd_system_unitdir=/usr/lib/systemd/system"
        echo "REFLASH_TREE=$root REFLASH_BINARY=$REFLASH_BOOT"
        sed -n '/^do_install() {/,/^}/p' "$recipe"
        echo do_install
    } | sh -eu >"$work/log" 2>&1 || fail "yocto: $option: $(cat "$work/log")"
    installed yocto
}

# installed NAME PATH…: a recipe has put all there.
installed() {
    local name=$1 path
    shift
    for path in usr/bin/reflash usr/lib/reflash/reflash-boot usr/lib/systemd/system/reflash.service "$@"; do
        [ -e "$work/rootfs/$path" ] || [ -L "$work/rootfs/$path" ] || fail "$name: no $path"
    done
}

recipes() {
    local version before=$failed target
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -1)
    grep -qx "REFLASH_VERSION = $version" "$here/buildroot/package/reflash/reflash.mk" || fail "buildroot: not $version"
    [ -e "$here/yocto/reflash_$version.bb" ] || fail "yocto: no recipe for $version"
    grep -q "md5=$(md5sum <"$root/LICENSE" | cut -d' ' -f1)" "$here/yocto/reflash_$version.bb" || fail "yocto: LICENSE"
    for target in "$root"/cross/*-linux-*.mk; do
        target=$(basename "$target" .mk)
        case $target in
        x86_64-*) buildroot x86_64 "$target" && yocto x86-64 "$target" ;;
        aarch64-*) buildroot aarch64 "$target" && yocto aarch64 "$target" ;;
        armv7-*) buildroot ARM_CPU_ARMV7A "$target" && yocto armv7a "$target" && yocto armv7ve "$target" ;;
        arm-*) buildroot ARM_CPU_ARMV6 "$target" && yocto arm "$target" ;;
        riscv64gc-*) buildroot RISCV_64 "$target" && yocto riscv64 "$target" ;;
        *) fail "recipes: nothing for $target" ;;
        esac
    done
    [ "$failed" != "$before" ] || pass "recipes for Buildroot and Yocto: $version, and every target's rules"
}

if [ -x "$REFLASH_BINARY" ]; then
    initramfs_tools
    dracut_module
else
    skip "images: no $REFLASH_BINARY: make cross VARIANT=full"
fi
systemd_unit
recipes
exit $((failed > 0))

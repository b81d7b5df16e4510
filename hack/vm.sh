#!/usr/bin/env bash
# A virtual machine with systemd, for what a container or a namespace cannot show:
# control groups that systemd manages, version 2 or 1, logind, NFS, disks.
#
#   hack/vm.sh build            makes the image (Debian packages), if it is not there
#   hack/vm.sh run DIR PORT     boots one in the foreground, with sshd at 127.0.0.1:PORT;
#                               it ends with this process, and its writes are discarded
#   hack/vm.sh up DIR [PORT]    boots one in the background and waits for its sshd
#   hack/vm.sh down DIR         ends it
#   hack/vm.sh ssh DIR CMD...   runs a command in it
#
# BOWLINE_VM_CGROUP=1 boots with control groups of version 1. The processor is emulated, as
# an existing /dev/kvm may not work (BOWLINE_VM_ACCEL=kvm uses it). The machine accepts inbound
# connections on one port and has no outbound network. Root logs in with the key beside the image;
# the script writes ssh_config, known_hosts and the console's output to DIR.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
if [ "$(id -u)" = 0 ]; then default_cache=/var/cache/bowline; else default_cache=${XDG_CACHE_HOME:-$HOME/.cache}/bowline; fi
cache=${BOWLINE_CACHE:-$default_cache}
vm=${BOWLINE_VM_CACHE:-$cache/vm}

# The machine's Debian packages. Nothing of Bowline is among them, as on any user's machine.
packages=(
  systemd systemd-sysv dbus libpam-systemd openssh-server
  linux-image-cloud-amd64 initramfs-tools kmod udev
  nfs-common nfs-kernel-server e2fsprogs xfsprogs
  runc containernetworking-plugins iptables conntrack ipset iproute2 procps util-linux
)
suite=bookworm
# The image's settings, as on an ordinary machine. Changing any of this text rebuilds the image.
customize() {
  cat <<'C'
set -eu
root=$1
echo bowline-vm >"$root/etc/hostname"
printf '127.0.0.1 localhost bowline-vm\n' >"$root/etc/hosts"
printf '/dev/vda / ext4 defaults 0 0\nLABEL=programs /opt/programs ext4 ro,nofail 0 0\n' >"$root/etc/fstab"
mkdir -p "$root/opt/programs" "$root/etc/systemd/network" "$root/root/.ssh" "$root/etc/containerd"
printf '[Match]\nType=ether\nKind=!*\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n' >"$root/etc/systemd/network/10-ether.network"
chroot "$root" systemctl enable systemd-networkd ssh >/dev/null
# A test that needs an NFS server starts it.
chroot "$root" systemctl disable --quiet nfs-server rpcbind.service rpcbind.socket
# No timer changes the disk, the clock or the packages during a test.
chroot "$root" systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer systemd-networkd-wait-online.service >/dev/null
printf '[Service]\nType=notify\nExecStart=/opt/programs/bowline-containerd\nEnvironment=PATH=/opt/programs:/usr/sbin:/usr/bin\nDelegate=yes\nKillMode=process\nOOMScoreAdjust=-999\nTasksMax=infinity\nLimitNOFILE=1048576\n' >"$root/etc/systemd/system/containerd.service"
printf 'PermitRootLogin prohibit-password\nPasswordAuthentication no\nUseDNS no\n' >"$root/etc/ssh/sshd_config.d/vm.conf"
rm -f "$root"/etc/ssh/ssh_host_*
cp "$vm/host_key" "$root/etc/ssh/ssh_host_ed25519_key"
chmod 600 "$root/etc/ssh/ssh_host_ed25519_key"
cp "$vm/host_key.pub" "$root/etc/ssh/ssh_host_ed25519_key.pub"
cp "$vm/key.pub" "$root/root/.ssh/authorized_keys"
chmod 700 "$root/root/.ssh"
printf 'net.ipv4.ip_forward = 1\n' >"$root/etc/sysctl.d/60-pods.conf"
printf 'overlay\nbr_netfilter\n' >"$root/etc/modules-load.d/pods.conf"
printf 'vm.nr_hugepages = 16\n' >"$root/etc/sysctl.d/61-hugepages.conf"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/locale "$root"/usr/share/man
C
}

stamp() { (echo "$suite ${packages[*]}"; customize) | sha256sum | cut -d' ' -f1; }

need() {
  local missing=() program
  for program in "$@"; do command -v "$program" >/dev/null || missing+=("$program"); done
  [ ${#missing[@]} = 0 ] && return
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "programs are missing: ${missing[*]} (Debian: qemu-system-x86 mmdebstrap e2fsprogs openssh-client)" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends qemu-system-x86 mmdebstrap e2fsprogs openssh-client >/dev/null
}

build() {
  need qemu-system-x86_64 mmdebstrap mke2fs ssh-keygen
  mkdir -p "$vm"
  exec 8>"$vm/lock"
  flock 8
  [ -s "$vm/root.img" ] && [ "$(cat "$vm/stamp" 2>/dev/null)" = "$(stamp)" ] && { exec 8>&-; return; }
  [ "$(id -u)" = 0 ] || { echo "hack/vm.sh build: run it as root" >&2; exit 1; }
  echo "making the image of the virtual machine (some minutes)" >&2
  rm -rf "$vm/stamp" "$vm/tree" "$vm/root.img"
  for key in key host_key; do
    [ -s "$vm/$key" ] || ssh-keygen -q -t ed25519 -N '' -C bowline-vm -f "$vm/$key"
  done
  customize >"$vm/customize.sh"
  local joined
  joined=$(IFS=,; echo "${packages[*]}")
  # Its own namespaces and a chroot: no package script sees this machine's processes or files, and
  # none starts a service.
  vm=$vm unshare --mount --pid --fork --kill-child mmdebstrap --quiet --mode=root --variant=minbase \
    --aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d"; printf "MODULES=list\n" >"$1/etc/initramfs-tools/conf.d/modules"; printf "virtio_pci\nvirtio_blk\nvirtio_net\next4\n" >"$1/etc/initramfs-tools/modules"' \
    --include="$joined" --customize-hook="sh $vm/customize.sh \"\$1\"" \
    "$suite" "$vm/tree" </dev/null 8>&-
  cp "$vm"/tree/boot/vmlinuz-* "$vm/kernel"
  cp "$vm"/tree/boot/initrd.img-* "$vm/initrd"
  rm -rf "$vm"/tree/boot/*
  mke2fs -qF -t ext4 -L root -d "$vm/tree" "$vm/root.img.new" 6G
  rm -rf "$vm/tree"
  mv "$vm/root.img.new" "$vm/root.img"
  stamp >"$vm/stamp"
  exec 8>&-
}

# The programs that the lab has built, on their own disk: the image need not be rebuilt when one of
# them is.
programs() {
  local tree=$1/programs
  mkdir -p "$tree"
  cp "$cache"/bin/{bowline-containerd,containerd-shim-runc-v2,pause,web,toolbox,busybox} "$tree/"
  mke2fs -qF -t ext4 -L programs -d "$tree" "$1/programs.img" 256M
  rm -rf "$tree"
}

run() {
  local dir=$1 port=$2 unified=1
  [ "${BOWLINE_VM_CGROUP:-2}" = 1 ] && unified="0 systemd.legacy_systemd_cgroup_controller=0"
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  chmod 700 "$dir"
  programs "$dir"
  printf '[127.0.0.1]:%s %s\n' "$port" "$(cut -d' ' -f1,2 "$vm/host_key.pub")" >"$dir/known_hosts"
  printf 'Host vm\n  HostName 127.0.0.1\n  Port %s\n  User root\n  IdentityFile %s\n  IdentitiesOnly yes\n  UserKnownHostsFile %s\n  StrictHostKeyChecking yes\n' \
    "$port" "$vm/key" "$dir/known_hosts" >"$dir/ssh_config"
  # snapshot=on writes to unnamed files, which end with the process.
  export TMPDIR=$dir
  exec qemu-system-x86_64 -name bowline-vm -machine q35,accel="${BOWLINE_VM_ACCEL:-tcg}" -cpu max,-arch-capabilities -smp 2 -m "${BOWLINE_VM_MEMORY:-2G}" \
    -kernel "$vm/kernel" -initrd "$vm/initrd" \
    -append "root=/dev/vda rw console=ttyS0 panic=-1 systemd.unified_cgroup_hierarchy=$unified ${BOWLINE_VM_APPEND:-}" \
    -drive file="$vm/root.img",if=virtio,format=raw,snapshot=on,cache=unsafe \
    -drive file="$dir/programs.img",if=virtio,format=raw,readonly=on \
    -netdev user,id=n,restrict=on,hostfwd=tcp:127.0.0.1:"$port"-:22 -device virtio-net-pci,netdev=n \
    -object rng-random,filename=/dev/urandom,id=r -device virtio-rng-pci,rng=r \
    -display none -monitor none -nodefaults -serial file:"$dir/console" -pidfile "$dir/pid"
}

up() {
  local dir=$1 port=${2:-2222} pid until
  mkdir -p "$dir"
  setsid "$here/hack/vm.sh" run "$dir" "$port" >"$dir/qemu.log" 2>&1 </dev/null &
  pid=$!
  until=$((SECONDS + ${BOWLINE_VM_WAIT:-600}))
  until [ -s "$dir/ssh_config" ] && ssh -F "$dir/ssh_config" -o ConnectTimeout=5 -o BatchMode=yes vm true 2>"$dir/ssh.log"; do
    kill -0 $pid 2>/dev/null || { cat "$dir/qemu.log" >&2; exit 1; }
    [ $SECONDS -lt $until ] || { kill $pid; echo "no sshd in the machine; its console is $dir/console" >&2; exit 1; }
    sleep 1
  done
}

case ${1:-} in
build) build ;;
run) build; run "$2" "$3" ;;
up) build; up "$2" "${3:-}" ;;
down) [ ! -s "$2/pid" ] || kill "$(cat "$2/pid")" ;;
ssh) dir=$2; shift 2; exec ssh -F "$dir/ssh_config" -o BatchMode=yes vm "$@" ;;
*) sed -n '2,15p' "$0" >&2; exit 2 ;;
esac

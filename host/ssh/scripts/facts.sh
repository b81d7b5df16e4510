# facts DIR THERMAL SWAPCONTROL...: prints keys and values, each with a NUL. It leaves out
# what the host lacks. THERMAL and SWAPCONTROL are patterns of paths.
set +e
# A file below /proc/sys has its content for the first read only. The shell's read takes
# one byte at a time and would see only the first digit.
line() {
	[ -r "$2" ] || return
	value=$(head -n 1 -- "$2" 2>/dev/null)
	[ -z "$value" ] || printf '%s\0%s\0' "$1" "$value"
}
whole() {
	[ -r "$2" ] || return
	value=$(tr -d '\0' <"$2" && echo x)
	printf '%s\0%s\0' "$1" "${value%x}"
}
# matching KEY FILE PATTERN: prints only the lines that match an extended regular expression.
matching() {
	printf '%s\0%s\0' "$1" "$(grep -s -E -e "$3" -- "$2")"
}
line hostname /proc/sys/kernel/hostname
line kernel /proc/sys/kernel/osrelease
printf 'machine\0%s\0' "$(uname -m)"
whole os-release /etc/os-release
whole usr-os-release /usr/lib/os-release
line machine-id /etc/machine-id
line dbus-machine-id /var/lib/dbus/machine-id
line boot-id /proc/sys/kernel/random/boot_id
line product-uuid /sys/class/dmi/id/product_uuid
whole vm-uuid /proc/device-tree/vm,uuid
line cpus /sys/devices/system/cpu/online
# distinct KEY FILE: prints how many different contents the files of the CPUs have.
distinct() {
	printf '%s\0%s\0' "$1" "$(cat /sys/devices/system/cpu/cpu[0-9]*/topology/"$2" 2>/dev/null | sort -u | grep -c .)"
}
distinct cores thread_siblings_list
distinct sockets core_siblings_list
line pid-max /proc/sys/kernel/pid_max
line threads-max /proc/sys/kernel/threads-max
line apparmor /sys/module/apparmor/parameters/enabled
line selinux /sys/fs/selinux/enforce
whole label /proc/self/attr/current
whole swaps /proc/swaps
matching meminfo /proc/meminfo '^(MemTotal|SwapTotal):'
matching status /proc/self/status '^CapBnd:'
whole resolv.conf /etc/resolv.conf
whole route /proc/net/route
# Each pod's interface has a link-local address, which is not an address of the host.
addresses=$(ip -o addr show up 2>/dev/null | grep -v -e '^[0-9]*: lo  *inet' -e ' inet6 fe80:')
printf 'addresses\0%s\0' "$addresses"
[ -n "$addresses" ] || {
	whole if-inet6 /proc/net/if_inet6
	whole fib-trie /proc/net/fib_trie
}
for pages in /sys/kernel/mm/hugepages/hugepages-*; do
	line "${pages##*/}" "$pages/nr_hugepages"
done
dir=$1 thermal=$2
shift 2
printf 'thermal-throttle\0%s\0' "$(ls -d $thermal 2>/dev/null)"
for file in $*; do
	[ ! -e "$file" ] || {
		printf 'swap-control\0yes\0'
		break
	}
done
until [ -e "$dir" ]; do
	dir=${dir%/*}
	dir=${dir:-/}
done
printf 'disk\0%s\0' "$(stat -f -c '%S %b %c' -- "$dir")"
exit 0

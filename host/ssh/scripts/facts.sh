# facts DIR: keys and values, each with a NUL. What a machine lacks is left out.
set +e
# A number below /proc/sys is there for the first read only, so the shell's own
# read, which takes one byte at a time, sees its first digit.
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
line pid-max /proc/sys/kernel/pid_max
line threads-max /proc/sys/kernel/threads-max
line apparmor /sys/module/apparmor/parameters/enabled
whole meminfo /proc/meminfo
whole status /proc/self/status
whole resolv.conf /etc/resolv.conf
whole route /proc/net/route
whole if-inet6 /proc/net/if_inet6
whole fib-trie /proc/net/fib_trie
printf 'addresses\0%s\0' "$(ip -o addr show up 2>/dev/null)"
for pages in /sys/kernel/mm/hugepages/hugepages-*; do
	line "${pages##*/}" "$pages/nr_hugepages"
done
dir=$1
until [ -e "$dir" ]; do
	dir=${dir%/*}
	dir=${dir:-/}
done
printf 'disk\0%s\0' "$(stat -f -c '%S %b %c' -- "$dir")"
exit 0

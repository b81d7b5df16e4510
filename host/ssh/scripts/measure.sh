# measure ROOT PATH...: keys and values, each with a NUL; ROOT is that of the memory
# cgroup, or empty. Then a line for each file system: device, size of a block, blocks,
# those that are free to users, inodes, free ones.
set +e
value() {
	value=$(cat -- "$2" 2>/dev/null)
	printf '%s\0%s\0' "$1" "$value"
}
value meminfo /proc/meminfo
value loadavg /proc/loadavg
value pid-max /proc/sys/kernel/pid_max
value threads-max /proc/sys/kernel/threads-max
if [ -n "$1" ]; then
	[ ! -e "$1/memory.usage_in_bytes" ] || value usage "$1/memory.usage_in_bytes"
	value stat "$1/memory.stat"
fi
shift
printf 'disks\0'
for dir; do
	until [ -e "$dir" ]; do
		dir=${dir%/*}
		dir=${dir:-/}
	done
	printf '%s %s\n' "$(stat -L -c %d -- "$dir")" "$(stat -f -c '%S %b %a %c %d' -- "$dir")"
done
printf '\0'
exit 0

# measure ROOT CGROUP LIMIT USAGE PATH...: prints keys and values, each with a NUL. ROOT is
# the directory of the root memory cgroup, or empty; CGROUP is that of a cgroup below it, or
# empty. LIMIT and USAGE are the names of their files. Then the script prints a line for each
# file system: device, block size, blocks, blocks available to users, inodes, free inodes.
set +e
value() {
	value=$(cat -- "$2" 2>/dev/null)
	printf '%s\0%s\0' "$1" "$value"
}
# lines KEY FILE PATTERN: prints only the lines that match an extended regular expression.
lines() {
	value=$(grep -s -E -e "$3" -- "$2")
	printf '%s\0%s\0' "$1" "$value"
}
lines meminfo /proc/meminfo '^(MemTotal|MemFree|Inactive\(file\)):'
value loadavg /proc/loadavg
value pid-max /proc/sys/kernel/pid_max
value threads-max /proc/sys/kernel/threads-max
lines oom-kills /proc/vmstat '^oom_kill '
if [ -n "$1" ]; then
	[ ! -e "$1/memory.usage_in_bytes" ] || value usage "$1/memory.usage_in_bytes"
	lines stat "$1/memory.stat" inactive_file
fi
if [ -n "$2" ] && [ -e "$2/$3" ]; then
	value cgroup-limit "$2/$3"
	value cgroup-usage "$2/$4"
	lines cgroup-stat "$2/memory.stat" inactive_file
fi
shift 4
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

# measure ROOT CGROUP LIMIT USAGE PATH...: ROOT is the directory of the root memory cgroup, or
# empty; CGROUP is that of a cgroup below it, or empty. LIMIT and USAGE are the names of their
# files. It prints, each with a key and NULs: lines of files, each after the file's name and a
# colon; and what filesystems prints of each PATH.
#
# This runs every few seconds on every host. It starts three programs, whatever it reads. Do not use the
# shell's read: it reads one byte at a time, and gets only the first digit of a sysctl.
set +e
root=$1 cgroup=$2 limit=$3 usage=$4
shift 4
printf 'lines\0'
grep -s -H -E -e '^(MemTotal|MemFree|Inactive\(file\)):' -e '^oom_kill ' -e '^(total_)?inactive_file ' -e '^[0-9]+$' -e ' [0-9]+/[0-9]+ ' -- \
	/proc/loadavg /proc/meminfo /proc/sys/kernel/pid_max /proc/sys/kernel/threads-max /proc/vmstat \
	${root:+"$root/memory.stat" "$root/memory.usage_in_bytes"} \
	${cgroup:+"$cgroup/memory.stat" "$cgroup/$limit" "$cgroup/$usage"}
printf '\0'
filesystems "$@"
exit 0

# listmounts DIR: prints the resolved path of DIR, a NUL, and all mounts.
real "$1"
printf '%s\0' "$real"
exec cat /proc/self/mountinfo

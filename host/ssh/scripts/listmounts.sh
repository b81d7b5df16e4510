# listmounts DIR MAX: prints the resolved path of DIR, a NUL, and at most MAX bytes of the mounts
# at and below it as in mountinfo. It replaces what Bowline does not read: the numbers, the
# options of the file system, and the root, which a pod can make as long as it likes.
real "$1"
pattern
printf '%s\0' "$real"
mounts=$(cut -d ' ' -f 5- /proc/self/mountinfo)
printf '%s\n' "$mounts" | sed -n -e "\\,^$pattern[ /],!d" -e 's/^/0 0 0:0 \/ /' -e 's/ [^ ]*$/ -/p' |
	head -c "$2"

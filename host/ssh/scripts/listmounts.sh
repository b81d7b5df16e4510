# listmounts DIR MAX: prints the resolved path of DIR, a NUL, at most MAX bytes of the mounts at
# and below it as in mountinfo, and a NUL if it has read all of them. It replaces what Bowline
# does not read: the numbers, the options of the file system, and the root, which a pod can
# make as long as it likes.
real "$1"
pattern
printf '%s\0' "$real"
{
	sed -n -e "\\,^[^ ]* [^ ]* [^ ]* [^ ]* $pattern[ /],!d" -e 's/^[^ ]* [^ ]* [^ ]* [^ ]* /0 0 0:0 \/ /' \
		-e 's/ [^ ]*$/ -/p' /proc/self/mountinfo && printf '\0'
} | head -c "$2"

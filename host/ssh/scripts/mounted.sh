# A pod can make the roots in mountinfo so long that a shell cannot handle them in time, so cut
# removes them first.

# top: prints TYPE SOURCE ... of the topmost mount at $real, if there is one, as in mountinfo.
top() {
	grep -F -e " $escaped " /proc/self/mountinfo | cut -d ' ' -f 5- | while IFS= read -r line; do
		before=${line%% - *} after=${line#* - }
		set -f
		set -- $before
		[ "$1" != "$escaped" ] || printf '%s\n' "$after"
	done | tail -n 1
}

# height: prints how many mounts are stacked at $real.
height() {
	cut -d ' ' -f 5 /proc/self/mountinfo | grep -cxF -e "$escaped" || :
}

# flags: prints the options of the topmost mount at $real and of its file system.
flags() {
	grep -F -e " $escaped " /proc/self/mountinfo | cut -d ' ' -f 5- | while IFS= read -r line; do
		before=${line%% - *} after=${line#* - }
		set -f
		set -- $before
		[ "$1" = "$escaped" ] || continue
		own=$2
		set -- $after
		printf '%s,%s\n' "$own" "${3-}"
	done | tail -n 1
}

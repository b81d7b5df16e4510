# unmountfirst PATH DIR BASE FLAG TARGET...: unmounts what nothing uses of the mounts at the
# TARGETs, and leaves the first four arguments. What stays mounted is for the next script to
# notice.
set -eu
tree=$1 dir=$2 base=$3 flag=$4
shift 4
for target; do
	[ -L "$target" ] || umount -- "$target" 2>/dev/null || :
done
set -- "$tree" "$dir" "$base" "$flag"

# mount SOURCE TARGET DIR TYPE OPTIONS: mounts a network file system. If TARGET is a mount
# already, the script does not stat it: stat may block on the file server.
source=$1 target=$2 type=$4 options=$5
real "$3"
real=${real%/}/${target##*/}
pattern
survey
case $top in
"$type $source "* | "${type}4 $source "*) exit 0 ;;
esac
[ -n "$top" ] || parents "$target" 027
before=$height code=0
mount -t "$type" -o "$options" -- "$source" "$real" || code=$?
# With some options, mount(8) ignores the type.
survey
case $top in
"$type "* | "${type}4 "*) exit "$code" ;;
esac
if [ "$height" -gt "$before" ]; then
	# Private first: otherwise the unmount propagates to the source of a bind mount.
	mount --make-rprivate -- "$real"
	umount -l -- "$real"
	fail "mounted ${top%% *} instead of $type; unmounted it"
fi
[ "$code" = 0 ] || exit "$code"
fail "nothing of the type $type is mounted"

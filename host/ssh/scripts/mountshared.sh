# mount SOURCE TARGET DIR TYPE OPTIONS: what another machine shares. The target is not
# looked at where something is mounted: who looks waits for the other machine.
source=$1 target=$2 type=$4 options=$5
real "$3"
real=${real%/}/${target##*/}
escaped
top=$(top)
case $top in
"$type $source "* | "${type}4 $source "*) exit 0 ;;
esac
[ -n "$top" ] || parents "$target" 027
before=$(height) code=0
mount -t "$type" -o "$options" -- "$source" "$real" || code=$?
# By some options mount(8) forgets the type.
after=$(height) top=$(top)
case $top in
"$type "* | "${type}4 "*) exit "$code" ;;
esac
if [ "$after" -gt "$before" ]; then
	# Private first: else what is mounted below goes where it was bound from as well.
	mount --make-rprivate -- "$real"
	umount -l -- "$real"
	fail "what was mounted is not of the type $type, but of the machine's own ${top%% *}, and was taken away"
fi
[ "$code" = 0 ] || exit "$code"
fail "nothing of the type $type is mounted"

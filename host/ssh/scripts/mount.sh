# mount SOURCE TARGET DIR TYPE OPTIONS REMOUNT PROPAGATION: for TYPE bind or rbind, a second
# call sets the OPTIONS, because the kernel ignores them in the first.
source=$1 target=$2 type=$4 options=$5 again=$6 propagation=$7
set -f
new= already=
[ -e "$target" ] || [ -L "$target" ] || new=yes # so nothing is mounted there
case $type in
bind | rbind)
	[ -e "$source" ] || stat -L -- "$source" >/dev/null
	if [ ! -d "$source" ]; then
		parents "$3" 027
		if [ ! -e "$target" ]; then
			(umask 027 && : >"$target")
		fi
	else
		parents "$target" 027
	fi
	;;
*) parents "$target" 027 ;;
esac

# The same mount is already on top: the answer to an earlier request was lost.
[ -n "$new" ] || {
	real "$target"
	escaped
}
if [ -z "$new" ] && grep -qF -e " $escaped " /proc/self/mountinfo; then
	top=
	while IFS= read -r line; do
		before=${line%% - *} after=${line#* - }
		set -- $before
		[ "$1" != "$escaped" ] || top=$after
	done <<EOF
$(grep -F -e " $escaped " /proc/self/mountinfo | cut -d ' ' -f 5-)
EOF
	if [ -n "$top" ]; then
		case $type in
		bind | rbind) [ ! "$source" -ef "$target" ] || already=yes ;;
		*)
			set -- $top
			[ "$1" != "$type" ] || [ "$2" != "$source" ] || already=yes
			;;
		esac
	fi
fi
if [ -z "$already" ]; then
	case $type in
	bind) mount --bind -- "$source" "$target" ;;
	rbind) mount --rbind -- "$source" "$target" ;;
	*) mount -t "$type" ${options:+-o "$options"} -- "$source" "$target" ;;
	esac
	trap 'umount -l -- "$target"' EXIT
	[ -z "$again" ] || mount -o "remount,bind,$again" -- "$target"
fi
for flag in $propagation; do
	mount "--make-$flag" -- "$target"
done
trap - EXIT

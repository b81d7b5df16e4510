# undoshared DIR: unmounts a bind mount of the directory on itself, and no other mount. A pod can
# make the roots of its mounts very long; cut and grep leave these mounts out.
[ -d "$1" ] || exit 0
real "$1"
escaped
own= device= root= point=
while read -r _ _ on from at _; do
	# In the pattern, bash 5.2 would not match the empty one of /.
	above=${at%/}
	case ${escaped%/}/ in
	"$above"/*) ;;
	*) continue ;;
	esac
	if [ "$at" = "$escaped" ]; then
		own="$on $from"
	elif [ "${#at}" -ge "${#point}" ]; then
		device=$on root=$from point=$at
	fi
done <<EOF
$(cut -b 1-8192 /proc/self/mountinfo | grep -e '^[^ ]* [^ ]* [^ ]* /[^ ]* /[^ ]* ')
EOF
[ "$own" = "$device ${root%/}/${escaped#"${point%/}"/}" ] || exit 0
umount -l -- "$real"

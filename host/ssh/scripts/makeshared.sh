# makeshared DIR: makes the mount of a directory shared. If the directory is on a mount that
# is not shared, it bind-mounts it on itself first.
parents "$1" 027
real "$1"
escaped
point= shared=
while read -r at _ optional; do
	# In the pattern, bash 5.2 would not match the empty one of /.
	above=${at%/}
	case ${escaped%/}/ in
	"$above"/*) ;;
	*) continue ;;
	esac
	[ "${#at}" -ge "${#point}" ] || continue
	point=$at shared=
	case " ${optional%% - *} " in *" shared:"*) shared=yes ;; esac
done <<EOF
$(cut -d ' ' -f 5- /proc/self/mountinfo)
EOF
[ -z "$shared" ] || exit 0
[ "$point" = "$escaped" ] || mount --rbind -- "$real" "$real"
mount --make-rshared -- "$real"

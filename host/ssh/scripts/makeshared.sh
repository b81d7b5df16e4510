# makeshared DIR: a directory whose mount is shared; it is mounted on itself where the one
# that it is in is not.
parents "$1" 027
real "$1"
escaped
point= shared=
while read -r _ _ _ _ at _ optional; do
	case ${escaped%/}/ in
	"${at%/}"/*) ;;
	*) continue ;;
	esac
	[ "${#at}" -ge "${#point}" ] || continue
	point=$at shared=
	case " ${optional%% - *} " in *" shared:"*) shared=yes ;; esac
done </proc/self/mountinfo
[ -z "$shared" ] || exit 0
[ "$point" = "$escaped" ] || mount --rbind -- "$real" "$real"
mount --make-rshared -- "$real"

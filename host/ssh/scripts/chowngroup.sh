# chowngroup PATH GID BITS: BITS are r or rw. Links are never followed; directories
# below that are of another file system are not entered.
[ -e "$1" ] || [ -L "$1" ] || stat -- "$1" >/dev/null
# What runs as its owner or group loses that with chgrp, so it gets it back.
find "$1" -xdev -type f \( -perm -4000 -o -perm -2000 \) ! -group "$2" -exec sh -c '
	set -e
	group=$1
	shift
	for file; do
		mode=$(stat -c %a -- "$file")
		chgrp -h "$group" -- "$file"
		chmod "0$mode" -- "$file"
	done' sh "$2" {} +
find "$1" -xdev ! -group "$2" -exec chgrp -h "$2" -- {} +
find "$1" -xdev -type d -exec chmod "ug+${3}x,g+s" -- {} +
find "$1" -xdev ! -type d ! -type l -exec chmod "ug+$3" -- {} +

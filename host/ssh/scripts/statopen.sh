# statopen PATH DEVICE INODE: the state of parseState.
open "$@"
exec stat -L -c 'x%f %s %i %d %g %Y %y' /proc/self/fd/3

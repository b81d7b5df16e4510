# readrange PATH DEVICE INODE OFFSET BYTES
open "$@"
tail -c "+$(($4 + 1))" <&3 | head -c "$5"

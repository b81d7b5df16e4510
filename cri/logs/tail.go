package logs

import (
	"bytes"
	"context"
	"fmt"
	"io"
)

// tailBlock is the size of a backward read, in bytes: one round trip.
const tailBlock = 32 << 10

// tailStart returns the offset of the last n lines of a file of size bytes. A last line without a
// newline does not count as a line, and is included. The reported size may be wrong, so ctx is
// checked with each block.
func tailStart(ctx context.Context, f io.ReaderAt, size, n int64) (int64, error) {
	buf := make([]byte, tailBlock)
	// A newline precedes the n lines, so search for n+1 newlines.
	for right := size; right > 0; {
		left := max(0, right-tailBlock)
		block := buf[:right-left]
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := readFull(f, block, left); err != nil {
			return 0, err
		}
		for end := len(block); ; {
			i := bytes.LastIndexByte(block[:end], '\n')
			if i < 0 {
				break
			}
			if n--; n < 0 {
				return left + int64(i) + 1, nil
			}
			end = i
		}
		right = left
	}
	return 0, nil
}

// readFull fills b from off; it fails if the file has become shorter.
func readFull(f io.ReaderAt, b []byte, off int64) error {
	n, err := f.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || err == io.EOF {
		return fmt.Errorf("the file was cut at %d bytes while it was read", off+int64(n))
	}
	return err
}

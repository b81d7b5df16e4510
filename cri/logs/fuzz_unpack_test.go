package logs

import (
	"bytes"
	"compress/gzip"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// packed is a file on a host.
type packed struct{ *bytes.Reader }

func (p packed) Close() error                 { return nil }
func (p packed) Stat() (host.FileInfo, error) { return host.FileInfo{Size: p.Size()}, nil }

// FuzzUnpack decompresses any rotated log, to at most 1 MiB here.
func FuzzUnpack(f *testing.F) {
	var small bytes.Buffer
	z := gzip.NewWriter(&small)
	_, err := z.Write([]byte(sample))
	testutil.Must(f, err)
	testutil.Must(f, z.Close())
	f.Add(small.Bytes(), int64(3))
	f.Add(small.Bytes()[:small.Len()/2], int64(0))
	f.Add([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"), int64(1))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte, from int64) {
		u, err := unpack(packed{bytes.NewReader(data)}, int64(len(data)))
		if err != nil {
			return
		}
		defer u.Close()
		p := make([]byte, 64<<10)
		for off, most := max(from, 0), int64(1<<20); off < most; {
			n, err := u.ReadAt(p, off)
			if off += int64(n); err != nil {
				return
			}
			if n == 0 {
				t.Fatal("nothing is read, without an error")
			}
		}
	})
}

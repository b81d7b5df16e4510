package queue

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// TestQueue compares a queue with a slice that keeps the whole stream.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var charged int64
		q := Queue{Charge: func(delta int64) { charged += delta }}
		var all []byte // the stream from offset 0 on
		start := 0
		size := rapid.SampledFrom([]int{0, 1, 100, ChunkSize - 1, ChunkSize, ChunkSize + 1, 3 * ChunkSize, 40 * ChunkSize})
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				p := make([]byte, size.Draw(t, "size"))
				for i := range p {
					p[i] = byte(len(all) + i*7 + i>>8)
				}
				q.Append(p)
				all = append(all, p...)
			},
			"read": func(t *rapid.T) {
				p := make([]byte, size.Draw(t, "size"))
				n := q.Read(p)
				if n != min(len(p), len(all)-start) || !bytes.Equal(p[:n], all[start:start+n]) {
					t.Fatalf("read %d bytes of %d at %d, or other ones", n, len(all)-start, start)
				}
				start += n
			},
			"peek": func(t *rapid.T) {
				at := rapid.IntRange(start, len(all)).Draw(t, "at")
				p := make([]byte, size.Draw(t, "size"))
				n := q.Peek(uint64(at), p)
				if n != min(len(p), len(all)-at) || !bytes.Equal(p[:n], all[at:at+n]) {
					t.Fatalf("peeked %d bytes of %d at %d, or other ones", n, len(all)-at, at)
				}
			},
			"discard": func(t *rapid.T) {
				start = rapid.IntRange(start, len(all)).Draw(t, "before")
				q.Discard(uint64(start))
			},
			"skip": func(t *rapid.T) {
				if start != len(all) {
					t.Skip("only an empty queue skips")
				}
				n := size.Draw(t, "size")
				q.Skip(n)
				all = append(all, make([]byte, n)...)
				start = len(all)
			},
			"": func(t *rapid.T) {
				if q.Start() != uint64(start) || q.End() != uint64(len(all)) || q.Len() != len(all)-start {
					t.Fatalf("the queue has [%d, %d), want [%d, %d)", q.Start(), q.End(), start, len(all))
				}
				if charged != int64(q.Held()) {
					t.Fatalf("%d bytes are charged, and %d are held", charged, q.Held())
				}
				if most := q.Len() + 2*ChunkSize; q.Held() > most || q.Len() == 0 && q.Held() != 0 {
					t.Fatalf("%d bytes hold %d", q.Len(), q.Held())
				}
			},
		})
	})
}

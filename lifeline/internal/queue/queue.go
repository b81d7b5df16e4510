// Package queue has a queue of bytes that know their offset in a stream. It takes memory in chunks as it
// grows, and returns them as it shrinks: an empty queue has none.
package queue

import "sync"

// ChunkSize is the size in bytes of the pieces of memory that a queue takes and charges.
const ChunkSize = 4 << 10

// kept is how many empty places for chunks an empty queue keeps.
const kept = 16

type chunk [ChunkSize]byte

var chunks = sync.Pool{New: func() any { return new(chunk) }}

// Queue holds the bytes [Start, End) of a stream. The zero Queue is empty and begins at offset 0. It is not
// safe for concurrent use.
type Queue struct {
	// Charge learns by how many bytes the memory of the queue grows or, if negative, shrinks. It may be nil.
	Charge func(delta int64)

	start, end uint64
	base       uint64 // offset of the first byte of chunks[head]; base ≤ start
	chunks     []*chunk
	head       int // chunks before it are gone
}

// Start is the offset of the first byte.
func (q *Queue) Start() uint64 { return q.start }

// End is the offset after the last byte.
func (q *Queue) End() uint64 { return q.end }

// Len is the number of bytes.
func (q *Queue) Len() int { return int(q.end - q.start) }

// Held is the memory in bytes that the queue has taken.
func (q *Queue) Held() int { return (len(q.chunks) - q.head) * ChunkSize }

// Append copies p to the end.
func (q *Queue) Append(p []byte) {
	if len(p) > 0 && q.Held() == 0 {
		q.base = q.end
	}
	for len(p) > 0 {
		at := int(q.end - q.base)
		if at == q.Held() {
			q.chunks = append(q.chunks, chunks.Get().(*chunk))
			q.charge(ChunkSize)
		}
		n := copy(q.chunks[q.head+at/ChunkSize][at%ChunkSize:], p)
		q.end += uint64(n)
		p = p[n:]
	}
}

// Skip moves an empty queue by n bytes, as if they had been appended and discarded.
func (q *Queue) Skip(n int) {
	q.end += uint64(n)
	q.Discard(q.end)
}

// Peek copies the bytes from an offset of the queue on into p, and returns how many it copied: less than
// len(p) at the end only.
func (q *Queue) Peek(offset uint64, p []byte) int {
	p = p[:min(uint64(len(p)), q.end-offset)]
	for n := 0; n < len(p); {
		at := int(offset-q.base) + n
		n += copy(p[n:], q.chunks[q.head+at/ChunkSize][at%ChunkSize:])
	}
	return len(p)
}

// Read moves bytes from the start into p, and returns how many.
func (q *Queue) Read(p []byte) int {
	n := q.Peek(q.start, p)
	q.Discard(q.start + uint64(n))
	return n
}

// Discard removes the bytes before an offset, which is at most End.
func (q *Queue) Discard(before uint64) {
	q.start = before
	gone := int(min(q.start-q.base, uint64(q.Held()))) / ChunkSize
	if q.start == q.end {
		gone = len(q.chunks) - q.head
	}
	if gone == 0 {
		return
	}
	for i := range gone {
		chunks.Put(q.chunks[q.head+i])
		q.chunks[q.head+i] = nil
	}
	q.head += gone
	q.base += uint64(gone) * ChunkSize
	q.charge(-int64(gone) * ChunkSize)
	switch {
	case q.head == len(q.chunks) && cap(q.chunks) > kept:
		q.chunks, q.head = nil, 0
	case q.head == len(q.chunks):
		q.chunks, q.head = q.chunks[:0], 0
	case q.head > kept && q.head > len(q.chunks)/2:
		n := copy(q.chunks, q.chunks[q.head:])
		clear(q.chunks[n:])
		q.chunks, q.head = q.chunks[:n], 0
	}
}

func (q *Queue) charge(delta int64) {
	if q.Charge != nil {
		q.Charge(delta)
	}
}

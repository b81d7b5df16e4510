package store

import (
	"sync/atomic"

	"golang.org/x/time/rate"
)

// progress adds up what containerd has got of the blobs of one image.
type progress struct {
	total  int64
	report func(done, total int64)
	done   atomic.Int64
}

func newProgress(total int64, report func(done, total int64)) *progress {
	if report == nil {
		report = func(int64, int64) {}
	}
	return &progress{total: total, report: report}
}

// add counts bytes; negative ones have to be written again.
func (p *progress) add(bytes int64) {
	if bytes != 0 {
		p.report(p.done.Add(bytes), p.total)
	}
}

// maxChunk is the data of one message, in bytes. With its other fields a message fits the largest buffers that
// gRPC pools, of 1 MiB.
const maxChunk = 1<<20 - 1<<10

// minChunk is the least data of a message, however low the rate.
const minChunk = 64 << 10

// NewRate returns a limit in bytes per second for Config; nil, which is no limit, for 0.
func NewRate(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytesPerSecond), maxChunk)
}

// chunk is the size of messages: what passes in an eighth of a second at the rate, so that other traffic does
// not wait longer for a message, within the limits.
func chunk(limit *rate.Limiter) int64 {
	if limit == nil {
		return maxChunk
	}
	return min(max(int64(limit.Limit()/8), minChunk), int64(limit.Burst()), maxChunk)
}

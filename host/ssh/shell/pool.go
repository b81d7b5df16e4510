package shell

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"
)

// MaxShells of a Pool. On a link with a long round trip, they bound how many pods start at a time.
// sshd allows a connection ten sessions by default; locks need one, and a script that was given up
// keeps its session until it has ended.
const MaxShells = 6

// Pool is up to Config.Shells shells of one host. Further callers wait.
type Pool struct {
	config Config
	slots  chan struct{}
	large  chan struct{} // capacity one: see bulky

	mu     sync.Mutex
	idle   []*Shell
	all    map[*Shell]bool
	closed bool
	ending sync.WaitGroup // of scripts that were given up
}

// NewPool starts nothing.
func NewPool(c Config) *Pool {
	return &Pool{config: c, slots: make(chan struct{}, cmp.Or(c.Shells, MaxShells)), large: make(chan struct{}, 1), all: map[*Shell]bool{}}
}

// Do runs one request on an idle shell, or on a new one. Errors are those of Shell.Do and
// Config.Start; the next request replaces a broken shell.
func (p *Pool) Do(ctx context.Context, r Request) (Result, error) {
	var res Result
	err := p.Read(ctx, r, func(got Result) error {
		res = got
		return nil
	})
	return res, err
}

// Read is Do for large output: read runs while no other large output is kept, because several
// outputs at once and their decoded forms would multiply the cost. The error may be that of
// read.
func (p *Pool) Read(ctx context.Context, r Request, read func(Result) error) error {
	if r.MaxStdout > DefaultOutput {
		turnCtx, cancel := context.WithCancel(ctx)
		r.turn = &turn{slot: p.large, ctx: turnCtx}
		defer r.turn.release()
		defer cancel()
	}
	res, err := p.run(ctx, r)
	if err != nil {
		return err
	}
	return read(res)
}

func (p *Pool) run(ctx context.Context, r Request) (Result, error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
	defer func() { <-p.slots }()
	s, err := p.get(ctx)
	if err != nil {
		return Result{}, err
	}
	res, err := s.Do(ctx, r)
	p.put(s)
	return res, err
}

// end kills the processes of an abandoned script, which would otherwise run until its time limit.
// It checks that the number is still that of a process group leader, because it may have been
// reused.
const end = `read -r stat 2>/dev/null </proc/$1/stat || exit 0
set -- "$1" ${stat##*) }
[ "$4" != "$1" ] || kill -KILL "-$1"`

// endLimit bounds the attempt; the script's own limit still applies.
const endLimit = 5 * time.Second

func (p *Pool) get(ctx context.Context) (*Shell, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	if n := len(p.idle); n > 0 {
		s := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return s, nil
	}
	p.mu.Unlock()
	s, err := Open(ctx, p.config)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		s.Close()
		return nil, errClosed
	}
	p.all[s] = true
	return s, nil
}

var errClosed = unreachable(errors.New("shell: the pool is closed"))

func (p *Pool) put(s *Shell) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Broken() != nil || p.closed {
		delete(p.all, s)
		if s.given != nil && !p.closed {
			p.ending.Go(func() {
				defer s.budget.Recover("a shell")
				<-s.given
				if s.left == 0 {
					return
				}
				ctx, cancel := context.WithTimeout(context.Background(), endLimit)
				defer cancel()
				_, _ = p.Do(ctx, Request{Script: end, Args: []string{strconv.Itoa(s.left)}, Limit: endLimit})
			})
		}
		return
	}
	p.idle = append(p.idle, s)
}

// Close closes every shell; requests in progress end with host.ErrUnreachable.
func (p *Pool) Close() error {
	defer p.ending.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for s := range p.all {
		errs = append(errs, s.Close())
	}
	p.idle, p.all = nil, nil
	return errors.Join(errs...)
}

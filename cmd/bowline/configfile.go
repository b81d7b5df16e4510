package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
)

// configFile is the configuration's file, which is looked at while the process runs.
//
// It is read, whole, and compared with what it was: so an edit in place, an editor's
// rename, the swap of a symbolic link by which a kubelet changes a mounted ConfigMap
// or Secret, and a file system that tells of no changes (a network's) are all one.
// A watch of the kernel's would have to follow each link on the way, and would be one
// dependency more.
type configFile struct {
	path  string
	apply func(*config.BowlineConfiguration)

	applied []byte  // what the hosts are driven by
	known   reading // what has been applied, or told to be wrong
}

// reading is the file as one look found it.
type reading struct {
	data []byte
	err  string // why there are no data; empty: there are
}

func (r reading) is(o reading) bool { return r.err == o.err && bytes.Equal(r.data, o.data) }

// lookPeriod is between two looks at the file. What has changed is believed when the
// next look finds the same: until then somebody may still be writing it.
const lookPeriod = time.Second

// openConfig reads the file for the first time.
func openConfig(path string, apply func(*config.BowlineConfiguration)) (*configFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	c, err := config.ParseFile(path, data)
	if err != nil {
		return nil, err
	}
	apply(c)
	return &configFile{path: path, apply: apply, applied: data, known: reading{data: data}}, nil
}

// watch applies what the file becomes, until ctx ends. A file that is wrong, or away,
// is told of and changes nothing. now asks for a look at once, whose word counts.
func (f *configFile) watch(ctx context.Context, now <-chan os.Signal) {
	ticker := time.NewTicker(lookPeriod)
	defer ticker.Stop()
	var before *reading // the last look, where it found something new
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-now:
			asked = true
		}
		r := f.look()
		switch {
		case r.is(f.known):
			before = nil
			if asked {
				klog.FromContext(ctx).Info("The configuration file is as it was", "file", f.path)
			}
		case asked, before != nil && r.is(*before):
			before = nil
			f.known = r
			f.take(klog.FromContext(ctx))
		default:
			before = &r
		}
	}
}

func (f *configFile) look() reading {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return reading{err: err.Error()}
	}
	return reading{data: data}
}

// take applies what is known of the file.
func (f *configFile) take(log klog.Logger) {
	if f.known.err != "" {
		log.Info("The configuration file cannot be read; the hosts are driven as they were", "err", f.known.err)
		return
	}
	c, err := config.ParseFile(f.path, f.known.data)
	var invalid *config.InvalidError
	switch {
	case errors.As(err, &invalid):
		log.Info("The configuration file is wrong and changes nothing; the hosts are driven as they were", "file", f.path, "err", invalid.Sentence())
	case err != nil:
		log.Info("The configuration file changes nothing; the hosts are driven as they were", "file", f.path, "err", err)
	case bytes.Equal(f.known.data, f.applied):
		log.Info("The configuration file is again as the hosts are driven", "file", f.path)
	default:
		f.applied = f.known.data
		log.Info("The configuration file has changed and is applied", "file", f.path, "hosts", len(c.Hosts))
		f.apply(c)
	}
}

// byName are the configuration's hosts.
func byName(cfg *config.BowlineConfiguration) map[string]*config.Host {
	hosts := make(map[string]*config.Host, len(cfg.Hosts))
	for i := range cfg.Hosts {
		hosts[cfg.Hosts[i].Name] = &cfg.Hosts[i]
	}
	return hosts
}

package stats

import (
	"context"
	"net/http"
	"sync/atomic"

	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/kubeletmetrics"
)

// Server presents what a Collector collects.
type Server struct {
	Collector *Collector
	Node      string
	// Machine returns what is known about the host itself.
	Machine func() Machine

	pages atomic.Int32 // being made or sent
}

// maxPages bounds the pages of a node that are being made or sent: other nodes wait for those that are
// made, and each takes memory until its caller has read it.
const maxPages = 4

// Summary returns the summary API's answer.
func (s *Server) Summary(ctx context.Context, onlyCPUAndMemory bool) (*statsapi.Summary, error) {
	got, err := s.Collector.Get(ctx, Need{Detail: !onlyCPUAndMemory, Rates: true, Storage: !onlyCPUAndMemory})
	if err != nil {
		return nil, err
	}
	if onlyCPUAndMemory && got.Detail {
		brief := *got
		brief.Detail, brief.Storage = false, nil
		got = &brief
	}
	return Summary(s.Node, got), nil
}

// Claims returns the file systems of the pods' claims, as far as they answer.
func (s *Server) Claims(ctx context.Context) map[kubeletmetrics.Claim]host.FileSystem {
	out := map[kubeletmetrics.Claim]host.FileSystem{}
	pods, at := s.Collector.claimsOf(ctx)
	for _, p := range pods {
		for _, v := range p.Volumes {
			if fs, ok := at[v.Path]; ok && v.Claim != "" {
				out[kubeletmetrics.Claim{Namespace: p.Namespace, Name: v.Claim}] = fs
			}
		}
	}
	return out
}

// Logs returns what the containers' logs use, as far as it could be measured.
func (s *Server) Logs(ctx context.Context) map[kubeletmetrics.Log]int64 {
	out := map[kubeletmetrics.Log]int64{}
	pods, used := s.Collector.logsOf(ctx)
	for _, p := range pods {
		for _, k := range p.Containers {
			if u, ok := used[logDir(p, k)]; ok {
				out[kubeletmetrics.Log{UID: string(p.UID), Namespace: p.Namespace, Pod: p.Name, Container: k.Name}] = u.Bytes
			}
		}
	}
	return out
}

// Resource answers /metrics/resource.
func (s *Server) Resource(w http.ResponseWriter, r *http.Request) {
	got, err := s.Collector.Get(r.Context(), Need{})
	if err != nil {
		WriteResource(w, r, nil, err)
		return
	}
	WriteResource(w, r, Summary(s.Node, got), nil)
}

// Cadvisor answers /metrics/cadvisor.
func (s *Server) Cadvisor(w http.ResponseWriter, r *http.Request) {
	if s.pages.Add(1) > maxPages {
		s.pages.Add(-1)
		http.Error(w, "too many requests for this node's metrics at a time", http.StatusServiceUnavailable)
		return
	}
	defer s.pages.Add(-1)
	got, err := s.Collector.Get(r.Context(), Need{Files: true})
	WriteCadvisor(w, r, got, s.Machine(), err)
}

// Package rules redirects what the pods of a host send to the cluster to the listeners of the helper. It makes
// one nftables table for each IP family, in the network namespace of the process:
//
//	table ip bowline-lifeline {                      # likewise ip6
//	    set cluster { type ipv4_addr; flags interval }
//	    set local   { type ipv4_addr; flags interval }
//	    map udp     { type ipv4_addr . inet_service : inet_service }
//	    set ports   { type inet_service }            # the values of udp
//	    chain prerouting { type nat hook prerouting priority dstnat - 10
//	        ip daddr @cluster ip daddr != @local meta l4proto tcp redirect to :TCP
//	        ip daddr @cluster ip daddr != @local meta l4proto udp redirect to :(ip daddr . udp dport map @udp)
//	    }
//	    chain output { type nat hook output priority dstnat - 10; the same }    # pods in the host's network
//	    chain input  { type filter hook input priority filter - 10
//	        meta l4proto tcp tcp dport TCP    ct status dnat accept, else drop
//	        meta l4proto udp udp dport @ports ct status dnat accept, else drop
//	    }
//	}
//
// The chain input keeps everything else, such as the host's LAN, away from the listeners. A machine on that
// LAN that routes an address of the cluster to this host is redirected, as with kube-proxy; the flow then has
// the address of that machine as its source, by which the exit refuses it.
//
// Redirecting delivers to this host, before any masquerading: so the source of a flow is the pod. The priority
// puts it before the rules of kube-proxy and of CNI plugins.
//
// Linux 5.12 and later destroys a table with the flag "owner" when the socket of its owner closes. So the rules
// end with the process, however it ends, and "nft flush ruleset" leaves them alone. Earlier kernels keep the
// table until Close, or until the next Open.
//
// There is no fallback to the program iptables. The helper has neither the host's file system nor its modules,
// so it cannot know which of the variants (legacy, nft) the host uses, and rules made by the other one are
// silently ineffective. Where nftables cannot redirect, Apply refuses with a Reason: on kernels without nf_tables
// or nft_redir (NoNFTables), and before Linux 4.18 while iptables has NAT rules (NATInUse).
//
// The helper's own connections go to backends on the host, which are never redirected (the helper refuses a
// backend that would be), so that they need neither a mark, which policy routing may use, nor a user of their own.
package rules

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
)

const (
	// Table is the name of the tables.
	Table = "bowline-lifeline"

	// kernelTimeout is the deadline of each exchange with the kernel.
	kernelTimeout = 5 * time.Second
)

// Wanted is what is redirected, and where to.
type Wanted struct {
	// Cluster are redirected, but for what is in Local.
	Cluster, Local []netip.Prefix
	// TCP4 and TCP6 are the ports of the TCP listeners.
	TCP4, TCP6 uint16
	// UDP has the port of the listener for each destination. Other datagrams are not redirected.
	UDP map[netip.AddrPort]uint16
}

// Rules are the rules of this process. They belong to one goroutine.
type Rules struct {
	conn     *nftables.Conn
	socket   *netlink.Conn // of conn; it owns the tables
	owned    bool          // the kernel removes the tables with socket
	families []*family
	routes   *routes
	udp      map[netip.AddrPort]uint16 // as of the last Apply
}

// Open returns rules that redirect nothing yet, and removes what an earlier process has left behind.
func Open() (*Rules, error) {
	r := &Rules{owned: true, families: []*family{newFamily(v4), newFamily(v6)}}
	if err := r.dial(); err != nil {
		return nil, err
	}
	var err error
	if r.routes, err = openRoutes(); err == nil {
		err = r.clean()
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Rules) dial() (err error) {
	r.conn, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		r.socket = c
		return nil
	}))
	if err != nil {
		return explain("open a netlink socket", err)
	}
	return nil
}

// clean removes the tables that an earlier process has left behind.
func (r *Rules) clean() error {
	if err := r.deadline(); err != nil {
		return err
	}
	tables, err := r.conn.ListTables()
	if err != nil {
		return explain("list the tables", err)
	}
	found := false
	for _, t := range tables {
		if t.Name == Table && (t.Family == v4.family || t.Family == v6.family) {
			r.conn.DelTable(t)
			found = true
		}
	}
	if !found {
		return nil
	}
	// The kernel refuses to delete what another socket owns.
	if err := r.flush(); errors.Is(err, netlinkPermission) {
		return &Error{Reason: AnotherHelper, Err: fmt.Errorf("remove the table %s: %w", Table, err)}
	} else if err != nil {
		return explain("remove the table of an earlier process", err)
	}
	return nil
}

// Kind says what redirects, in the words of wire.Status.
func (r *Rules) Kind() string {
	if r.owned {
		return "nftables"
	}
	return "nftables, kept"
}

// Apply makes the rules redirect what is wanted, without a moment in which they redirect something else. If the
// kernel refuses them, they stay what they were. The error is an Error.
func (r *Rules) Apply(w Wanted) error {
	if err := w.validate(); err != nil {
		return &Error{Reason: Failed, Err: err}
	}
	var missing []*family
	for _, f := range r.families {
		if !f.made && f.needed(w) {
			missing = append(missing, f)
		}
	}
	if err := r.makeTables(missing); err != nil {
		return err
	}
	for _, f := range r.families {
		if !f.made && !f.needed(w) {
			continue
		}
		if err := f.write(r.conn, w); err != nil {
			return &Error{Reason: Failed, Err: err}
		}
	}
	if err := r.flush(); err != nil {
		return explain("write the rules", errors.Join(err, r.removeTables(missing)))
	}
	for _, f := range missing {
		f.made = true
	}
	if err := r.routes.apply(w.Cluster); err != nil {
		return explain("add routes for pods in the host's network", err)
	}
	r.forget(w.UDP)
	return nil
}

// forget removes what the kernel remembers of exchanges from before their destination was redirected to its
// present port: it decides by the first datagram of an exchange, and a client that sends without a pause would
// never be redirected. Where the kernel cannot be asked, they end with a pause.
func (r *Rules) forget(udp map[netip.AddrPort]uint16) {
	changed := map[netip.AddrPort]bool{}
	for dst, port := range udp {
		if r.udp[dst] != port {
			changed[dst] = true
		}
	}
	r.udp = maps.Clone(udp)
	if len(changed) > 0 {
		_ = forgetExchanges(changed)
	}
}

// Close removes the rules.
func (r *Rules) Close() error {
	var made []*family
	for _, f := range r.families {
		if f.made {
			made = append(made, f)
			f.made = false
		}
	}
	err := r.removeTables(made)
	if r.routes != nil {
		err = errors.Join(err, r.routes.close())
	}
	return errors.Join(err, r.conn.CloseLasting())
}

// deadline bounds the exchanges with the kernel from now on.
func (r *Rules) deadline() error { return r.socket.SetDeadline(time.Now().Add(kernelTimeout)) }

// flush sends the messages of conn as one transaction.
func (r *Rules) flush() error {
	if err := r.deadline(); err != nil {
		return err
	}
	return r.conn.Flush()
}

// removeTables removes tables that this process has made.
func (r *Rules) removeTables(families []*family) error {
	if len(families) == 0 {
		return nil
	}
	for _, f := range families {
		r.conn.DelTable(f.table)
	}
	if err := r.flush(); err != nil {
		return fmt.Errorf("remove the table %s: %w", Table, err)
	}
	return nil
}

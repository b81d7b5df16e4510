package rules

import (
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tableOwner is NFT_TABLE_F_OWNER: the table belongs to the socket that makes it, and ends with it.
const tableOwner = 2

// makeTables makes empty tables, which belong to the socket where the kernel knows owners. It is a transaction
// of its own, because package nftables makes tables without flags. An empty table does nothing, so a packet
// sees either no rule or all of them.
func (r *Rules) makeTables(families []*family) error {
	if len(families) == 0 {
		return nil
	}
	flags := uint32(0)
	if r.owned {
		flags = tableOwner
	}
	err := r.send(tableMessages(families, flags))
	// Linux before 5.12 refuses a flag that it does not know with EINVAL.
	if r.owned && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)) {
		r.owned = false
		err = r.send(tableMessages(families, 0))
	}
	if err != nil {
		return explain("make the table "+Table, err)
	}
	return nil
}

// tableMessages are the messages of the transaction that makes tables.
func tableMessages(families []*family, flags uint32) []netlink.Message {
	batch := func(kind uint16) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request},
			Data:   netfilterHeader(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
		}
	}
	messages := []netlink.Message{batch(unix.NFNL_MSG_BATCH_BEGIN)}
	for _, f := range families {
		e := netlink.NewAttributeEncoder()
		e.ByteOrder = networkOrder
		e.String(unix.NFTA_TABLE_NAME, Table)
		e.Uint32(unix.NFTA_TABLE_FLAGS, flags)
		data, _ := e.Encode() // fails only for nested attributes that do
		messages = append(messages, netlink.Message{
			Header: netlink.Header{
				Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE),
				Flags: netlink.Request | netlink.Acknowledge | netlink.Create,
			},
			Data: append(netfilterHeader(byte(f.table.Family), 0), data...),
		})
	}
	return append(messages, batch(unix.NFNL_MSG_BATCH_END))
}

// send sends a transaction and waits for its acknowledgements.
func (r *Rules) send(messages []netlink.Message) error {
	if err := r.deadline(); err != nil {
		return err
	}
	if _, err := r.socket.SendMessages(messages); err != nil {
		return err
	}
	var failed error
	for _, m := range messages {
		if m.Header.Flags&netlink.Acknowledge == 0 {
			continue
		}
		if _, err := r.socket.Receive(); err != nil {
			failed = errors.Join(failed, err)
			if errors.Is(err, unix.EPERM) {
				return failed // without CAP_NET_ADMIN, the kernel answers once
			}
		}
	}
	return failed
}

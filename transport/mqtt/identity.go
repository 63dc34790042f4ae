package mqtt

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/gobridge/gobridge"
)

// The values of client_id_suffix.
const (
	SuffixHostname = "hostname"
	SuffixNonce    = "nonce"
)

// nonce is one for the whole process: every instance of a session, and every check of
// a config, must come to the same client id.
var nonce = sync.OnceValue(func() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
})

// clientID completes the client id: the stable name under which the broker keeps
// the session. With client_id_suffix it becomes <client_id>-<suffix>, so that
// instances with one config are different clients.
func (c *useCheck) clientID() {
	if c.s.ClientID == "" {
		if c.Bridge.ID == "" || c.Session.ID == "" {
			return // reported where they are missing
		}
		c.s.ClientID = c.Bridge.ID + "-" + c.Session.ID
	}
	// An id that has its suffix was completed by an earlier check.
	if suffix := c.suffix(os.Hostname); suffix != "" && !strings.HasSuffix(c.s.ClientID, "-"+suffix) {
		c.s.ClientID += "-" + suffix
	}
	id := c.s.ClientID
	switch {
	case !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl):
		c.fault("client_id", "the client id is not valid UTF-8 or holds a control character", "use letters, digits and -")
	case len(id) > gobridge.MaxTopicBytes:
		c.fault("client_id", fmt.Sprintf("the client id has %d bytes, the limit is 65535", len(id)), "write a shorter one")
	}
}

// suffix returns what client_id_suffix stands for, empty without one and where it is
// refused.
func (c *useCheck) suffix(hostname func() (string, error)) string {
	const key = "client_id_suffix"
	kind, mode := c.s.ClientIDSuffix, c.Session.Mode
	switch {
	case kind != SuffixHostname && kind != SuffixNonce:
		return "" // unset, or reported by its enum
	case mode == gobridge.ModeExclusive:
		c.fault(key, "client_id_suffix contradicts session_mode exclusive: the next owner resumes the session of the last one by its client id, and messages queued for another id would be stranded",
			"remove it; the lease lets one instance connect at a time")
		return ""
	case kind == SuffixNonce && mode == gobridge.ModePersistent:
		c.fault(key, "client_id_suffix: nonce gives a session_mode persistent session a new client id with each start: what the broker queued for the last one would be stranded",
			"write hostname where host names stay the same, or session_mode: ephemeral")
		return ""
	case kind == SuffixNonce:
		return nonce()
	}
	name, err := hostname()
	if err != nil || name == "" {
		why := "it is empty"
		if err != nil {
			why = err.Error()
		}
		c.fault(key, "client_id_suffix: hostname needs the host name: "+why, "write a client_id for each instance")
		return ""
	}
	return name
}

// shares reports whether the receiver has a shared subscription.
func shares(r *gobridge.ReceiverSpec) bool {
	return r != nil && slices.ContainsFunc(r.Topics, func(t gobridge.TopicSpec) bool {
		_, _, shared := gobridge.SplitShare(t.Topic)
		return shared
	})
}

// warnOfSharing tells what a $share group asks of the client ids of its members,
// which one process cannot see.
func warnOfSharing(use *gobridge.SessionUse, report gobridge.Report) {
	if !shares(use.Receiver) {
		return
	}
	switch s := sessionSettings(use.Session); {
	case use.Session.Mode == gobridge.ModeExclusive:
		report("session_mode", "one instance at a time receives for an exclusive session: its $share group has one member and spreads no load",
			"write session_mode: persistent and give each instance a client id of its own")
	case use.Session.Mode != gobridge.ModePersistent:
	case s.ClientIDSuffix == SuffixHostname:
		report("options.session.client_id_suffix", fmt.Sprintf("$share on a persistent session needs a client id that no other member has and that stays the same over restarts; here it is %q", s.ClientID),
			"make sure that the host name of each instance is its own and does not change: messages queued for a name that never comes back are stranded")
	default:
		report("options.session.client_id", fmt.Sprintf("$share on a persistent session needs a client id that no other member has; here it is %q", s.ClientID),
			"where several instances run one config, write client_id_suffix: hostname or a client_id for each: with one id they disconnect each other")
	}
}

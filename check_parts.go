package gobridge

import (
	"fmt"
	"strconv"
	"strings"
)

// checkParts ties receivers and senders to their sessions.
func (c *checker) checkParts() {
	s := c.spec
	c.uses = make([]use, len(s.Sessions))
	for i := range s.Sessions {
		c.uses[i] = use{
			SessionUse: SessionUse{Bridge: &s.Bridge, Session: &s.Sessions[i]},
			kind:       c.kinds.Transport(s.Sessions[i].Transport),
			path:       at("sessions", i),
		}
	}
	for i := range s.Receivers {
		r, path := &s.Receivers[i], c.receiverPaths[i]
		u := c.sessionOf("receiver", path, r.SessionID, r.Transport)
		if u == nil {
			continue
		}
		if u.Receiver != nil {
			c.fault(path+".session_id", fmt.Sprintf("session %q already has a receiver, %s", r.SessionID, u.receiverPath),
				"give each receiver a session of its own; one receiver may have many topics")
			continue
		}
		u.Receiver, u.receiverPath = r, path
		c.partOptions(u, path, &r.Options, receiverOptions)
	}
	c.senderUses = make([]*use, len(s.Senders))
	for i := range s.Senders {
		p, path := &s.Senders[i], c.senderPaths[i]
		u := c.sessionOf("sender", path, p.SessionID, p.Transport)
		if u == nil {
			continue
		}
		u.Senders, u.senderPaths = append(u.Senders, p), append(u.senderPaths, path)
		if c.partOptions(u, path, &p.Options, senderOptions) {
			c.senderUses[i] = u
		}
	}
}

func sessionOptions(t *Transport) func() any  { return t.SessionOptions }
func receiverOptions(t *Transport) func() any { return t.ReceiverOptions }
func senderOptions(t *Transport) func() any   { return t.SenderOptions }

// partOptions completes and checks the options of one part of a session and
// reports whether the transport can read them.
func (c *checker) partOptions(u *use, path string, options *any, of func(*Transport) func() any) bool {
	if u.kind == nil {
		return false
	}
	if of(u.kind) == nil {
		return true
	}
	path += ".options"
	if !c.options(path, options, of(u.kind)) {
		u.broken = true
		return false
	}
	c.checkOptions(path, *options)
	return true
}

// sessionOf returns the session that a receiver or sender belongs to.
func (c *checker) sessionOf(what, path, sessionID, transport string) *use {
	if sessionID == "" {
		if transport != "" && c.unavailable(path+".transport", "transport "+transport) {
			return nil
		}
		c.fault(path+".session_id", "the "+what+" has no session", "write session_id: and the id of a session")
		return nil
	}
	i, ok := c.sessions[sessionID]
	if !ok {
		c.fault(path+".session_id", fmt.Sprintf("there is no session %q", sessionID), c.known(c.sessions, "session"))
		return nil
	}
	if t := c.spec.Sessions[i].Transport; transport != "" && transport != t {
		c.fault(path+".transport", fmt.Sprintf("the %s is of transport %q, its session %q of %q", what, transport, sessionID, t),
			"remove transport: a "+what+" with a session takes that of the session")
		return nil
	}
	return &c.uses[i]
}

// known lists the ids that could have been meant.
func (c *checker) known(index map[string]int, what string) string {
	if len(index) == 0 {
		return "there are no " + what + "s yet; write one"
	}
	return "write one of " + names(index)
}

// checkSessions derives the modes and lets each transport check its sessions.
func (c *checker) checkSessions() {
	for i := range c.uses {
		u := &c.uses[i]
		s := u.Session
		if s.Mode == "" {
			s.Mode = deriveMode(u.Receiver)
		}
		if s.CredentialsURI != "" {
			c.checkCredentials(u.path+".credentials_uri", s.CredentialsURI)
		}
		if u.Receiver == nil && len(u.Senders) == 0 {
			c.warn(u.path, fmt.Sprintf("no receiver or sender uses session %q", s.ID), "remove it")
		}
		c.checkTransport(u)
	}
}

// checkCredentials checks the form of a credentials_uri. What it names is read when the
// bridge runs.
func (c *checker) checkCredentials(path, uri string) {
	scheme, _, ok := strings.Cut(uri, "://")
	if kind := c.kinds.Credential(scheme); ok && kind != nil {
		if err := kind.Check(uri); err != nil {
			c.fault(path, "this is no "+scheme+":// URI of a credential", err.Error())
		}
		return
	}
	known := make(map[string]bool)
	for _, k := range c.kinds.Credentials {
		known[k.Scheme+"://"] = true
	}
	if len(known) == 0 {
		c.fault(path, "there is no source of credentials here", "write options.session.username and password")
		return
	}
	// The text itself may be a secret that was put in the wrong place.
	c.fault(path, "this names no source of credentials", "begin with one of "+names(known))
}

// deriveMode is the session mode where none is written (D.1).
func deriveMode(r *ReceiverSpec) string {
	if r != nil {
		for _, t := range r.Topics {
			if t.QoS != nil && *t.QoS > 0 {
				return ModePersistent
			}
		}
	}
	return ModeEphemeral
}

func (c *checker) checkTransport(u *use) {
	s := u.Session
	switch {
	case s.Transport == "":
		c.fault(u.path+".transport", "the session has no transport", "write transport: mqtt")
		return
	case u.kind == nil:
		if !c.unavailable(u.path+".transport", "transport "+s.Transport) {
			known := make(map[string]bool)
			for _, t := range c.kinds.Transports {
				known[t.Name] = true
			}
			c.fault(u.path+".transport", fmt.Sprintf("there is no transport %q here", s.Transport), "write one of "+names(known))
		}
		return
	}
	c.partOptions(u, u.path, &s.Options, sessionOptions)
	if u.broken {
		return
	}
	before := len(c.problems)
	if u.kind.Check != nil {
		u.kind.Check(&u.SessionUse, c.relative(u, c.fault))
	}
	if u.kind.Warn != nil && len(c.problems) == before {
		u.kind.Warn(&u.SessionUse, c.relative(u, c.warn))
	}
}

// relative turns the paths of a transport's check into paths of the spec.
func (c *checker) relative(u *use, report Report) Report {
	return func(path, what, hint string) {
		if rest, ok := strings.CutPrefix(path, "receiver."); ok {
			report(u.receiverPath+"."+rest, what, hint)
			return
		}
		if rest, ok := strings.CutPrefix(path, "senders["); ok {
			index, rest, _ := strings.Cut(rest, "]")
			if i, err := strconv.Atoi(index); err == nil && i >= 0 && i < len(u.senderPaths) {
				report(u.senderPaths[i]+rest, what, hint)
				return
			}
		}
		report(join(u.path, path), what, hint)
	}
}

// checkClientIDs refuses two sessions that a broker takes for one client: each
// would throw the other off for ever.
func (c *checker) checkClientIDs() {
	type client struct{ transport, endpoint, id string }
	seen := make(map[client]*use)
	for i := range c.uses {
		u := &c.uses[i]
		if u.broken || u.kind == nil || u.kind.ClientID == nil || u.kind.Endpoints == nil {
			continue
		}
		id := u.kind.ClientID(u.Session)
		if id == "" {
			continue
		}
		for _, endpoint := range u.kind.Endpoints(u.Session) {
			k := client{u.Session.Transport, endpoint, id}
			if other := seen[k]; other != nil && other != u {
				c.fault(u.path, fmt.Sprintf("session %q is the same client %q at %s as session %q; each would disconnect the other", u.Session.ID, id, endpoint, other.Session.ID),
					"give each session a client id of its own, or use one session for both")
				break
			}
			seen[k] = u
		}
	}
}

package gobridge

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// minLeaseTTL leaves room for renewals and for the reads of a standby.
const minLeaseTTL = time.Second

// usesLeases reports whether a session of the spec is exclusive.
func (s *Spec) usesLeases() bool {
	for i := range s.Sessions {
		if s.Sessions[i].Mode == ModeExclusive {
			return true
		}
	}
	return false
}

// Owners tells under whose lease each session runs: an exclusive session under its
// own, and one that only serves routes of one exclusive session under that one's (V8).
// Sessions that always run are missing.
func (s *Spec) Owners() map[string]string {
	receiving, sending := map[string]string{}, map[string]string{} // session ids by part
	for i := range s.Receivers {
		receiving[s.Receivers[i].ID] = s.Receivers[i].SessionID
	}
	for i := range s.Senders {
		sending[s.Senders[i].ID] = s.Senders[i].SessionID
	}
	exclusive, owners := map[string]bool{}, map[string]string{}
	for i := range s.Sessions {
		exclusive[s.Sessions[i].ID] = s.Sessions[i].Mode == ModeExclusive
	}
	always := map[string]bool{}
	serves := func(session, source string) {
		if first, known := owners[session]; !exclusive[source] || known && first != source {
			always[session] = true
		}
		owners[session] = source
	}
	for _, session := range receiving {
		serves(session, session)
	}
	for i := range s.Routes {
		for j := range s.Routes[i].Bindings {
			serves(sending[s.Routes[i].Bindings[j].SenderID], receiving[s.Routes[i].ReceiverID])
		}
	}
	for session := range always {
		delete(owners, session)
	}
	for session, is := range exclusive {
		if is {
			owners[session] = session
		}
	}
	return owners
}

// checkLeases checks exclusive sessions: their leases, the stores that all instances
// need, and that what belongs together follows one lease (V8, D5, D6).
func (c *checker) checkLeases() {
	for i := range c.uses {
		u := &c.uses[i]
		switch {
		case u.Session.Mode == ModeExclusive:
			c.checkLease(u.path+".lease", &u.Session.Lease)
		case u.Session.Lease != *SetDefaults(new(LeaseSpec)):
			c.fault(u.path+".lease", "lease is for session_mode exclusive; this session is "+u.Session.Mode, "remove the block, or write session_mode: exclusive")
		}
	}
	clustered := c.spec.Bridge.DeploymentMode == DeploymentClustered
	shared := false
	if c.spec.usesLeases() {
		shared = c.checkSharedStores(clustered)
		c.checkOwnedRoutes()
	}
	if clustered || shared {
		c.checkInstances()
	}
}

func (c *checker) checkLease(path string, l *LeaseSpec) {
	e := l.Effective()
	switch {
	case l.TTL < minLeaseTTL:
		c.fault(path+".ttl", fmt.Sprintf("ttl %v is too short to be renewed in time", l.TTL), "write at least 1s; 15s is the default")
	case e.RenewInterval >= l.TTL/2:
		c.fault(path+".renew_interval", fmt.Sprintf("renew_interval %v is not less than half of ttl %v: one failed renewal would end the lease", e.RenewInterval, l.TTL),
			fmt.Sprintf("write less than %v, or 0s for %v", l.TTL/2, l.TTL/4))
	case e.RenewInterval < l.TTL/100:
		c.fault(path+".renew_interval", fmt.Sprintf("renew_interval %v is less than a hundredth of ttl %v", e.RenewInterval, l.TTL), fmt.Sprintf("write 0s for %v", l.TTL/4))
	}
	if b := c.spec.Bridge.ShutdownTimeout; l.StepDownGrace > b && b > 0 {
		c.fault(path+".step_down_grace", fmt.Sprintf("step_down_grace %v is longer than bridge.shutdown_timeout %v", l.StepDownGrace, b), fmt.Sprintf("write at most %v", b))
	}
}

// checkSharedStores makes sure that the next owner finds what the last one left. It
// reports whether several processes share the leases.
func (c *checker) checkSharedStores(clustered bool) bool {
	s := &c.spec.Stores
	type store struct {
		role, keeps string
		spec        *StoreSpec
		file        string
		known       bool
		shared      func(b *BridgeSpec, options any) (string, error)
		place       string
		why         error
	}
	lease := &store{role: "lease", keeps: "leases of exclusive sessions", spec: &s.Lease, file: "leases.db"}
	history := &store{role: "managed_subscriptions", keeps: "history of subscriptions, which the next owner goes by,", spec: &s.ManagedSubscriptions, file: "subscriptions.db"}
	for _, k := range c.kinds.Leases {
		if k.Name == s.Lease.Type {
			lease.known, lease.shared = true, k.Shared
		}
	}
	for _, k := range c.kinds.Histories {
		if k.Name == s.ManagedSubscriptions.Type {
			history.known, history.shared = true, k.Shared
		}
	}
	for _, st := range []*store{lease, history} {
		if !st.known {
			continue // reported, or there is no history here
		}
		st.why = fmt.Errorf("type %s is for one process alone", st.spec.Type)
		if st.shared != nil && st.spec.Options != nil {
			st.place, st.why = st.shared(&c.spec.Bridge, st.spec.Options)
		}
	}
	if !clustered && lease.why != nil {
		c.warn("bridge.deployment_mode", "session_mode exclusive with deployment_mode standalone: no other instance takes over", "write deployment_mode: clustered, or session_mode: persistent")
		return false
	}
	for _, st := range []*store{lease, history} {
		if st.why == nil {
			continue
		}
		path := "stores." + st.role
		c.fault(path, "the "+st.keeps+" must be in a store that all instances share: "+st.why.Error(),
			fmt.Sprintf("write %s: { type: sqlite, options: { path: /srv/gobridge/%s } } with a path outside of each data_dir", path, st.file))
	}
	if lease.place != "" && lease.place == history.place {
		c.fault("stores.lease", "the leases and the history of subscriptions have one path: leases need a file of their own", "write another path for one of the two")
	}
	return true
}

// checkOwnedRoutes refuses routes between sessions that different instances may own,
// and tells what waits for an owner that is gone.
func (c *checker) checkOwnedRoutes() {
	for _, b := range c.bindings {
		r := &c.spec.Routes[b.route]
		from, to := c.useOf(c.spec.Receivers[b.receiver].SessionID), c.useOf(c.spec.Senders[b.sender].SessionID)
		if from == nil || to == nil || from == to || to.Session.Mode != ModeExclusive {
			continue
		}
		c.fault(c.senderPaths[b.sender], fmt.Sprintf("route %q leads from session %q to the exclusive session %q, which another instance may own: its messages would wait", r.ID, from.Session.ID, to.Session.ID),
			"send through a session of its own, without session_mode: it follows the lease of an exclusive source")
	}
	for i := range c.spec.Routes {
		r := &c.spec.Routes[i]
		if j, ok := c.receivers[r.ReceiverID]; ok && r.DeliveryMode == SharedOutbox {
			if u := c.useOf(c.spec.Receivers[j].SessionID); u != nil && u.Session.Mode == ModeExclusive {
				c.warn(at("routes", i)+".delivery_mode", fmt.Sprintf("messages in the outbox wait for the instance that stored them: those of an owner that is gone are sent when it owns session %q again", u.Session.ID),
					"write delivery_mode: direct_hold, where the next owner receives what was not sent")
			}
		}
	}
}

// checkInstances looks for sessions that each of several instances runs under one
// client id: they would disconnect each other for ever.
func (c *checker) checkInstances() {
	owners := c.spec.Owners()
	exclusive := map[string]string{} // an exclusive source of each session, by the session's id
	for _, b := range c.bindings {
		from := c.useOf(c.spec.Receivers[b.receiver].SessionID)
		if from != nil && from.Session.Mode == ModeExclusive {
			exclusive[c.spec.Senders[b.sender].SessionID] = from.Session.ID
		}
	}
	for i := range c.uses {
		u := &c.uses[i]
		id := u.Session.ID
		if u.broken || u.kind == nil || u.kind.ClientID == nil || u.Receiver == nil && len(u.Senders) == 0 {
			continue
		}
		client := u.kind.ClientID(u.Session)
		own := u.kind.OwnClientID != nil && u.kind.OwnClientID(u.Session) || namesInstance(client, c.spec.Bridge.InstanceID)
		switch {
		case owners[id] == id && own:
			c.warn(u.path, fmt.Sprintf("client id %q of the exclusive session %q holds the name of this instance: the next owner would not find what the broker has queued for it", client, id),
				"write a client_id that all instances have")
			continue
		case owners[id] != "" || own || client == "":
			continue
		}
		what := fmt.Sprintf("every instance runs session %q, and all of them would be client %q at its broker and disconnect each other", id, client)
		if source := exclusive[id]; source != "" {
			c.fault(u.path, what+fmt.Sprintf(": it does not follow the lease of session %q, because it serves other routes too", source),
				fmt.Sprintf("give the routes of session %q a session of their own, or give this one a client_id for each instance (client_id_suffix: hostname)", source))
			continue
		}
		c.warn(u.path, what+", unless its client_id differs from instance to instance", "write client_id_suffix: hostname, or session_mode: exclusive")
	}
}

// namesInstance reports whether a client id holds the name of an instance as a word.
func namesInstance(client, instance string) bool {
	isPart := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
	for rest := client; instance != ""; {
		i := strings.Index(rest, instance)
		if i < 0 {
			return false
		}
		before, _ := utf8.DecodeLastRuneInString(rest[:i])
		after, _ := utf8.DecodeRuneInString(rest[i+len(instance):])
		if !isPart(before) && !isPart(after) {
			return true
		}
		rest = rest[i+1:]
	}
	return false
}

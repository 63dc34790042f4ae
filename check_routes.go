package gobridge

import (
	"fmt"
	"strconv"
	"strings"
)

// deliveryMode is what the checks know of a delivery mode.
type deliveryMode struct {
	// acksEarly says that a message is acknowledged at its source before the
	// destination confirmed it or a durable store holds it.
	acksEarly bool
}

var deliveryModes = map[string]deliveryMode{
	DirectHold:   {},
	SharedOutbox: {},
}

// adviseDurability warns of a route whose mode lets its source forget a message that
// nothing else holds: what is on its way to the destinations when the bridge ends is
// lost, whatever the QoS.
func (c *checker) adviseDurability(route int, modes map[string]deliveryMode) {
	r := &c.spec.Routes[route]
	if !modes[r.DeliveryMode].acksEarly {
		return
	}
	ids := make([]string, len(r.Bindings))
	for i := range r.Bindings {
		ids[i] = strconv.Quote(r.Bindings[i].ID)
	}
	c.warn(at("routes", route)+".delivery_mode",
		fmt.Sprintf("delivery_mode %s acknowledges a message before its destination confirmed it or a durable store holds it: what is on its way over %s when the bridge ends is lost",
			r.DeliveryMode, strings.Join(ids, ", ")),
		"write delivery_mode: "+DirectHold+" or "+SharedOutbox+" where every message counts")
}

// checkRoutes checks the routes, what they refer to and their policies.
func (c *checker) checkRoutes() {
	s := c.spec
	if len(s.Routes) == 0 {
		c.fault("routes", "there are no routes, so nothing would be moved", "write a route with a receiver and a binding")
	}
	c.receiverRoute = make([]int, len(s.Receivers))
	for i := range c.receiverRoute {
		c.receiverRoute[i] = -1
	}
	senderUsed := make([]bool, len(s.Senders))
	for i := range s.Routes {
		r, path := &s.Routes[i], at("routes", i)
		receiver := c.routeReceiver(i)
		c.adviseDurability(i, deliveryModes)
		if len(r.Processors) > 0 {
			c.unavailable(path+".processors", "processors")
		}
		switch {
		case len(r.Bindings) == 0:
			c.fault(path+".bindings", "the route has no binding", "write at least one binding with a sender")
		case len(r.Bindings) > 1 && r.DispatchMode == DispatchSingle:
			c.fault(path+".dispatch_mode", fmt.Sprintf("dispatch_mode single has %d bindings", len(r.Bindings)),
				"write dispatch_mode: fan_out for a copy to each binding, or keep one binding")
		}
		for j := range r.Bindings {
			if sender := c.checkBinding(i, j, receiver); sender >= 0 {
				senderUsed[sender] = true
			}
		}
		c.checkPolicy(i, receiver)
	}
	for i, route := range c.receiverRoute {
		if id := s.Receivers[i].ID; route < 0 && c.receivers[id] == i && id != "" {
			c.fault(c.receiverPaths[i], fmt.Sprintf("no route uses receiver %q", id), "name it in a route, or remove it")
		}
	}
	for i, used := range senderUsed {
		if id := s.Senders[i].ID; !used && c.senders[id] == i && id != "" {
			c.warn(c.senderPaths[i], fmt.Sprintf("no binding uses sender %q", id), "name it in a binding, or remove it")
		}
	}
}

// routeReceiver returns the index of a route's receiver, -1 when there is none.
func (c *checker) routeReceiver(route int) int {
	r, path := &c.spec.Routes[route], at("routes", route)
	if r.ReceiverID == "" {
		c.fault(path+".receiver_id", "the route has no receiver", "write receiver_id: and the id of a receiver, or the receiver inline")
		return -1
	}
	i, ok := c.receivers[r.ReceiverID]
	if !ok {
		c.fault(path+".receiver_id", fmt.Sprintf("there is no receiver %q", r.ReceiverID), c.known(c.receivers, "receiver"))
		return -1
	}
	if other := c.receiverRoute[i]; other >= 0 {
		c.fault(path+".receiver_id", fmt.Sprintf("receiver %q already feeds route %q", r.ReceiverID, c.spec.Routes[other].ID),
			"a receiver feeds one route: add a binding to that route, or another session and receiver")
		return i
	}
	c.receiverRoute[i] = route
	if u := c.useOf(c.spec.Receivers[i].SessionID); u != nil && u.Receiver == &c.spec.Receivers[i] {
		u.Route = r
	}
	return i
}

func (c *checker) useOf(sessionID string) *use {
	if i, ok := c.sessions[sessionID]; ok {
		return &c.uses[i]
	}
	return nil
}

// checkBinding returns the index of a binding's sender, -1 when there is none.
func (c *checker) checkBinding(route, j, receiver int) int {
	b, path := &c.spec.Routes[route].Bindings[j], at("routes", route)+"."+at("bindings", j)
	if b.SenderID == "" {
		c.fault(path+".sender_id", "the binding has no sender", "write sender_id: and the id of a sender, or the sender inline")
		return -1
	}
	sender, ok := c.senders[b.SenderID]
	if !ok {
		c.fault(path+".sender_id", fmt.Sprintf("there is no sender %q", b.SenderID), c.known(c.senders, "sender"))
		return -1
	}
	u := c.senderUses[sender]
	if u == nil {
		return sender
	}
	addressPath := path + ".address"
	if b.Address == "" && u.kind.DefaultAddress != nil {
		b.Address = u.kind.DefaultAddress(&c.spec.Senders[sender])
	}
	if b.Address == "" {
		c.fault(addressPath, fmt.Sprintf("the binding has no address and its sender %q no default", b.SenderID),
			`write an address such as "{topic}", or the sender's default_topic`)
		return sender
	}
	t, err := ParseTemplate(b.Address)
	if err != nil {
		c.fault(addressPath, fmt.Sprintf("address %q: %v", b.Address, err), "")
		return sender
	}
	if u.kind.CheckAddress != nil {
		if err := u.kind.CheckAddress(t.Sample()); err != nil {
			c.fault(addressPath, fmt.Sprintf("address %q cannot be sent to: %v", b.Address, err), "write an address that its transport accepts")
			return sender
		}
	}
	if receiver < 0 {
		return sender
	}
	for _, topic := range c.spec.Receivers[receiver].Topics {
		if ValidateFilter(topic.Topic) != nil {
			continue
		}
		if _, ok := t.Pattern(topic.Topic); !ok {
			c.fault(addressPath, fmt.Sprintf("address %q asks for a level that no topic of the filter %q has", b.Address, topic.Topic),
				"use a lower level; levels count from 0")
		}
	}
	c.bindings = append(c.bindings, resolvedBinding{route: route, receiver: receiver, sender: sender, template: t})
	return sender
}

// checkPolicy checks the policy of a route against itself, its source and the
// dead-letter queue.
func (c *checker) checkPolicy(route, receiver int) {
	p, path := &c.spec.Routes[route].Policy, at("routes", route)+".policy."
	if budget := *p.SendRetryBudget; budget > 0 && budget < p.SendTimeout {
		c.fault(path+"send_retry_budget", fmt.Sprintf("send_retry_budget %v is shorter than send_timeout %v, so that one send could spend it", budget, p.SendTimeout),
			fmt.Sprintf("write 0s, or at least %v", p.SendTimeout))
	}
	if b := &p.Backoff; b.MaxInterval < b.InitialInterval && b.MaxInterval >= 0 {
		c.fault(path+"backoff.max_interval", fmt.Sprintf("max_interval %v is shorter than initial_interval %v", b.MaxInterval, b.InitialInterval),
			fmt.Sprintf("write at least %v", b.InitialInterval))
	}
	if c.spec.Stores.DLQ.Type == StoreNone {
		for _, action := range []struct{ name, value string }{
			{"on_permanent_failure", p.OnPermanentFailure}, {"on_expired", p.OnExpired}, {"on_filtered", p.OnFiltered},
		} {
			if action.value == ActionDLQ {
				c.fault(path+action.name, action.name+" is dlq, but stores.dlq.type is none", "write "+action.name+": drop, or remove type: none")
			}
		}
	}
	if receiver < 0 {
		return
	}
	r := &c.spec.Receivers[receiver]
	var besteffort []string
	for _, t := range r.Topics {
		if t.QoS != nil && *t.QoS == 0 {
			besteffort = append(besteffort, strconv.Quote(t.Topic))
		}
	}
	if len(besteffort) == 0 {
		return
	}
	filters := strings.Join(besteffort, ", ")
	if c.spec.Stores.DLQ.Type == StoreNone && !p.AllowRetryDrop {
		c.fault(path+"allow_retry_drop", fmt.Sprintf("QoS 0 messages (%s) cannot be delivered again by their source, and there is no dead-letter queue for those that fail", filters),
			"write allow_retry_drop: true to permit their loss, or remove stores.dlq.type: none")
	}
	row := "G04"
	if c.spec.Routes[route].DeliveryMode == SharedOutbox {
		row = "G07"
	}
	c.warn(c.receiverPaths[receiver]+".topics", fmt.Sprintf("QoS 0 is best effort: messages of %s can be lost (%s)", filters, row), "subscribe with qos: 1 where every message counts")
}

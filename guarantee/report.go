package guarantee

import (
	"slices"
	"strings"

	"github.com/gobridge/gobridge"
)

// Report is what the matrix says about a config. Its JSON form is stable.
type Report struct {
	// NoSourceSideLoss tells that whatever can still be lost has its cause outside the
	// bridge.
	NoSourceSideLoss bool    `json:"no_source_side_loss"`
	Routes           []Route `json:"routes"`
}

// Route is the part of one route.
type Route struct {
	ID           string   `json:"route_id"`
	DeliveryMode string   `json:"delivery_mode"`
	DispatchMode string   `json:"dispatch_mode"`
	SessionID    string   `json:"session_id"`
	SessionMode  string   `json:"session_mode"`
	SenderIDs    []string `json:"sender_ids"`
	Filters      []Filter `json:"filters"`
}

// Filter is the part of one topic filter.
type Filter struct {
	Topic            string `json:"topic"`
	QoS              int    `json:"qos"`
	NoSourceSideLoss bool   `json:"no_source_side_loss"`
	// Packets has one entry for each kind of packet that comes through the filter: a
	// filter of QoS 1 or 2 also carries what publishers send at QoS 0.
	Packets []Packets `json:"packets"`
	// Change is what would strengthen the filter most, nil when the config can do no
	// more.
	Change *Change `json:"change,omitempty"`
}

// Packets are the messages of one QoS.
type Packets struct {
	QoS int `json:"qos"`
	// ByPublisher marks the QoS 0 packets of publishers in a filter that asks for more.
	ByPublisher bool      `json:"by_publisher"`
	Findings    []Finding `json:"findings"`
	// Lost, Outside and Repeated are the ids of the rows by which a message can be lost
	// within the bridge, lost by a cause outside of it, and repeated.
	Lost     []string `json:"lost"`
	Outside  []string `json:"outside"`
	Repeated []string `json:"repeated"`
}

// Finding is what one row means here.
type Finding struct {
	Row     string  `json:"row"`
	Verdict Verdict `json:"verdict"`
	// Outside tells that the cause lies outside the bridge.
	Outside bool   `json:"outside"`
	Text    string `json:"text"`
	// Because names the settings that decide.
	Because []string `json:"because"`
}

// loses tells that a message can be lost.
func (f *Finding) loses() bool { return f.Verdict == PossibleLoss || f.Verdict == Collapse }

// repeats are the rows of no loss by which a message may arrive twice all the same.
var repeats = []string{"G01", "G05"}

// Explain says which rows apply to each filter of each route. The spec has passed
// [gobridge.Spec.Check] with the same kinds.
func Explain(spec *gobridge.Spec, kinds *gobridge.Kinds) *Report {
	r := &Report{NoSourceSideLoss: true}
	for i := range spec.Routes {
		route := explainRoute(spec, kinds, &spec.Routes[i])
		for _, f := range route.Filters {
			r.NoSourceSideLoss = r.NoSourceSideLoss && f.NoSourceSideLoss
		}
		r.Routes = append(r.Routes, route)
	}
	return r
}

// Lost names each filter with messages that the bridge itself can lose, and the rows:
// "route up, filter a/#: G04 G17".
func (r *Report) Lost() []string {
	var all []string
	for _, route := range r.Routes {
		for _, f := range route.Filters {
			if ids := f.rows(func(p *Packets) []string { return p.Lost }); len(ids) > 0 {
				all = append(all, "route "+route.ID+", filter "+f.Topic+": "+strings.Join(ids, " "))
			}
		}
	}
	return all
}

// Outside are the rows, sorted, by which a message can be lost by a cause outside the
// bridge.
func (r *Report) Outside() []string {
	var all []string
	for _, route := range r.Routes {
		for _, f := range route.Filters {
			all = append(all, f.rows(func(p *Packets) []string { return p.Outside })...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// rows joins what of returns for the packets of a filter.
func (f *Filter) rows(of func(*Packets) []string) []string {
	var all []string
	for i := range f.Packets {
		for _, id := range of(&f.Packets[i]) {
			if !slices.Contains(all, id) {
				all = append(all, id)
			}
		}
	}
	return all
}

func explainRoute(spec *gobridge.Spec, kinds *gobridge.Kinds, route *gobridge.RouteSpec) Route {
	out := Route{ID: route.ID, DeliveryMode: route.DeliveryMode, DispatchMode: route.DispatchMode}
	receiver := receiverOf(spec, route)
	session := spec.Use(receiver.SessionID).Session
	out.SessionID, out.SessionMode = session.ID, session.Mode
	for i := range route.Bindings {
		out.SenderIDs = append(out.SenderIDs, route.Bindings[i].SenderID)
	}
	for i := range receiver.Topics {
		topic := &receiver.Topics[i]
		f := Filter{Topic: topic.Topic, QoS: *topic.QoS}
		own := conditionsOf(spec, kinds, route, topic, f.QoS)
		f.Packets = append(f.Packets, explainPackets(own))
		if f.QoS > 0 {
			f.Packets = append(f.Packets, explainPackets(conditionsOf(spec, kinds, route, topic, 0)))
		}
		f.NoSourceSideLoss = !slices.ContainsFunc(f.Packets, func(p Packets) bool { return len(p.Lost) > 0 })
		f.Change = strongestChange(own)
		out.Filters = append(out.Filters, f)
	}
	return out
}

func explainPackets(c *conditions) Packets {
	// Empty lists, not null, in JSON.
	p := Packets{QoS: c.qos, ByPublisher: c.chosenByPublisher(), Lost: []string{}, Outside: []string{}, Repeated: []string{}}
	for i := range rows {
		row := &rows[i]
		if row.apply == nil {
			continue
		}
		found, applies := row.apply(c)
		if !applies {
			continue
		}
		f := Finding{Row: row.ID, Verdict: row.Verdict, Outside: found.outside, Text: found.text, Because: append([]string{}, found.because...)}
		if found.verdict != "" {
			f.Verdict = found.verdict
		}
		p.Findings = append(p.Findings, f)
		switch {
		case f.loses() && f.Outside:
			p.Outside = append(p.Outside, f.Row)
		case f.loses():
			p.Lost = append(p.Lost, f.Row)
		case f.Verdict == MayRepeat || slices.Contains(repeats, f.Row):
			p.Repeated = append(p.Repeated, f.Row)
		}
	}
	return p
}

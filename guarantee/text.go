package guarantee

import (
	"bufio"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// width is the longest line of the text, in characters.
const width = 100

// WriteText writes the report for people, at most 100 characters a line. Filters that
// differ in nothing but their topics are put together, and of the QoS 0 packets of
// publishers only what differs is said.
func (r *Report) WriteText(w io.Writer) error {
	out := bufio.NewWriter(w)
	for i := range r.Routes {
		r.Routes[i].write(out)
	}
	for _, line := range r.verdict() {
		wrap(out, "", line, 2)
	}
	return out.Flush()
}

// verdict says whether the bridge can lose a message, and by which rows.
func (r *Report) verdict() []string {
	lines := []string{"The bridge loses nothing by itself."}
	if lost := r.Lost(); len(lost) > 0 {
		lines = append([]string{"The bridge itself can lose messages:"}, lost...)
	}
	return append(lines, "Losses with a cause outside the bridge: "+strings.Join(r.Outside(), " "))
}

func (r *Route) write(out *bufio.Writer) {
	wrap(out, "", fmt.Sprintf("route %s: %s, %s, from session %s (%s) to %s",
		r.ID, r.DeliveryMode, r.DispatchMode, r.SessionID, r.SessionMode, strings.Join(r.SenderIDs, ", ")), 2)
	for i := 0; i < len(r.Filters); {
		f, first := &r.Filters[i], i
		for i++; i < len(r.Filters) && f.readsAs(&r.Filters[i]); i++ {
		}
		f.write(out, r.Filters[first:i])
	}
	out.WriteByte('\n')
}

// readsAs tells whether the same text holds for another filter.
func (f *Filter) readsAs(g *Filter) bool {
	findings := func(p, q Packets) bool {
		return p.ByPublisher == q.ByPublisher && slices.EqualFunc(p.Findings, q.Findings, sameFinding)
	}
	return slices.EqualFunc(f.Packets, g.Packets, findings) && reflect.DeepEqual(f.Change, g.Change)
}

func sameFinding(a, b Finding) bool { return reflect.DeepEqual(a, b) }

// write writes what holds for all of the filters, f among them.
func (f *Filter) write(out *bufio.Writer, filters []Filter) {
	topics := make([]string, len(filters))
	for i := range filters {
		topics[i] = fmt.Sprintf("%s (QoS %d)", filters[i].Topic, filters[i].QoS)
	}
	wrap(out, "  ", strings.Join(topics, ", "), 4)
	for i := range f.Packets {
		p := &f.Packets[i]
		findings := p.Findings
		if p.ByPublisher {
			wrap(out, "    ", "What publishers send at QoS 0 comes through as well. What differs for it:", 4)
			findings = slices.DeleteFunc(slices.Clone(findings), func(g Finding) bool {
				return slices.ContainsFunc(f.Packets[0].Findings, func(h Finding) bool {
					return h.Row == g.Row && h.Verdict == g.Verdict && h.Outside == g.Outside && h.Text == g.Text
				})
			})
		}
		for _, g := range findings {
			g.write(out)
		}
	}
	if f.Change != nil {
		wrap(out, "    ", "Strongest change: "+f.Change.Write+" ("+f.Change.Why+")", 6)
	}
}

func (f *Finding) write(out *bufio.Writer) {
	verdict := f.Verdict.String()
	if f.loses() && f.Outside {
		verdict += ", cause outside"
	}
	text := f.Text
	if len(f.Because) > 0 {
		text += " [" + strings.Join(f.Because, ", ") + "]"
	}
	wrap(out, "    "+f.Row+" ", verdict+": "+text, 8)
}

// wrap writes text after a prefix, with the further lines indented.
func wrap(out *bufio.Writer, prefix, text string, indent int) {
	line := prefix
	empty := true
	for word := range strings.FieldsSeq(text) {
		switch {
		case empty:
			line += word
		case len(line)+1+len(word) > width:
			out.WriteString(line + "\n")
			line = strings.Repeat(" ", indent) + word
		default:
			line += " " + word
		}
		empty = false
	}
	out.WriteString(line + "\n")
}

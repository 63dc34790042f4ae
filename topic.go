package gobridge

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// MaxTopicBytes is the longest topic name or filter, in bytes (MQTT v5, 1.5.4).
const MaxTopicBytes = 65_535

// sharePrefix starts the filter of a shared subscription (MQTT v5, 4.8.2).
const sharePrefix = "$share/"

// ValidateTopic reports why a topic name cannot be published to: it must not be
// empty, longer than 65,535 bytes, start with $ or hold a wildcard, and must be
// UTF-8 without NUL, control characters and noncharacters (brokers close the
// connection over those, MQTT v5, 1.5.4). The error is an *[Error] with
// CodeInvalidTopic, ClassRejected.
func ValidateTopic(topic string) error {
	err := validateText(topic)
	switch {
	case err != nil:
	case topic[0] == '$':
		err = errTopicDollar
	case strings.ContainsAny(topic, "+#"):
		err = errTopicWildcard
	}
	if err != nil {
		return &Error{Code: CodeInvalidTopic, Class: ClassRejected, Op: "topic name", Err: err}
	}
	return nil
}

// ValidateFilter reports why a topic filter, shared or not, cannot be subscribed
// to (MQTT v5, 4.7 and 4.8.2).
func ValidateFilter(filter string) error {
	if err := validateText(filter); err != nil {
		return err
	}
	if strings.HasPrefix(filter, sharePrefix) || filter == "$share" {
		group, rest, shared := SplitShare(filter)
		switch {
		case !shared:
			return errShareForm
		case group == "" || strings.ContainsAny(group, "+#"):
			return errShareGroup
		}
		filter = rest
	}
	for level, rest, more := cutLevel(filter); ; level, rest, more = cutLevel(rest) {
		switch {
		case len(level) > 1 && strings.ContainsAny(level, "+#"):
			return errFilterLevel
		case level == "#" && more:
			return errFilterHash
		case !more:
			return nil
		}
	}
}

var (
	errEmpty         = errors.New("is empty")
	errTooLong       = errors.New("is longer than 65535 bytes")
	errNotUTF8       = errors.New("is not valid UTF-8")
	errNUL           = errors.New("holds a NUL character")
	errControl       = errors.New("holds a control character, over which brokers close the connection")
	errNonCharacter  = errors.New("holds a Unicode noncharacter, over which brokers close the connection")
	errTopicDollar   = errors.New("starts with $, which belongs to the broker")
	errTopicWildcard = errors.New("holds a wildcard (+ or #)")
	errFilterLevel   = errors.New("+ and # must stand alone in their level")
	errFilterHash    = errors.New("# must be the last level")
	errShareForm     = errors.New("a shared filter has the form $share/<group>/<filter>")
	errShareGroup    = errors.New("the group of a shared filter must not be empty or hold a wildcard")
)

// validateText checks what topic names and filters have in common.
func validateText(s string) error {
	if s == "" {
		return errEmpty
	}
	if len(s) > MaxTopicBytes {
		return errTooLong
	}
	for i := 0; i < len(s); {
		if c := s[i]; c >= ' ' && c < 0x7f {
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return errNotUTF8
		case r == 0:
			return errNUL
		case r < ' ' || r >= 0x7f && r <= 0x9f:
			return errControl
		case r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe:
			return errNonCharacter
		}
		i += size
	}
	return nil
}

// cutLevel splits off the first level of a topic or filter; more tells whether a
// separator followed, so that an empty last level is seen.
func cutLevel(s string) (level, rest string, more bool) { return strings.Cut(s, "/") }

// SplitShare splits $share/<group>/<filter>. For any other filter shared is false
// and filter is the whole.
func SplitShare(s string) (group, filter string, shared bool) {
	rest, ok := strings.CutPrefix(s, sharePrefix)
	if !ok {
		return "", s, false
	}
	group, filter, ok = strings.Cut(rest, "/")
	if !ok || filter == "" {
		return "", s, false
	}
	return group, filter, true
}

// MatchTopic reports whether a topic name matches a valid filter that is not
// shared. Topics that start with $ are not matched by a filter that starts with a
// wildcard (MQTT v5, 4.7.2). It does not allocate.
func MatchTopic(filter, topic string) bool {
	if topic == "" || topic[0] == '$' && wildFirst(filter) {
		return false
	}
	for {
		f, fRest, fMore := cutLevel(filter)
		if f == "#" {
			return true
		}
		t, tRest, tMore := cutLevel(topic)
		if f != "+" && f != t {
			return false
		}
		if !tMore {
			// The filter a/# also matches the level above it.
			return !fMore || fRest == "#"
		}
		if !fMore {
			return false
		}
		filter, topic = fRest, tRest
	}
}

// FiltersOverlap reports whether some topic name matches both filters, neither of
// them shared.
func FiltersOverlap(a, b string) bool {
	_, ok := IntersectFilters(a, b)
	return ok
}

// IntersectFilters returns the filter that matches exactly the topic names that
// both filters match; ok is false when there are none. Neither is shared.
func IntersectFilters(a, b string) (filter string, ok bool) {
	if a == "" || b == "" {
		return "", false
	}
	if a[0] == '$' && wildFirst(b) || b[0] == '$' && wildFirst(a) {
		return "", false
	}
	var out []string
	for {
		la, ra, moreA := cutLevel(a)
		lb, rb, moreB := cutLevel(b)
		switch {
		case la == "#":
			return strings.Join(append(out, b), "/"), true
		case lb == "#":
			return strings.Join(append(out, a), "/"), true
		case la == "+":
			out = append(out, lb)
		case lb == "+" || la == lb:
			out = append(out, la)
		default:
			return "", false
		}
		switch {
		case !moreA && !moreB, !moreA && rb == "#", !moreB && ra == "#":
			// What /# and + have in common would be the empty topic, which is none.
			filter = strings.Join(out, "/")
			return filter, filter != ""
		case !moreA || !moreB:
			return "", false
		}
		a, b = ra, rb
	}
}

func wildFirst(filter string) bool {
	return filter != "" && (filter[0] == '+' || filter[0] == '#')
}

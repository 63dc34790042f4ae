package credential

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gobridge/gobridge"
)

var (
	errEmpty   = errors.New("it is empty")
	errNoLogin = errors.New("it is neither JSON nor one line user:password")
)

// content is the JSON form of a credential.
type content struct {
	Username string  `json:"username"`
	Password string  `json:"password"`
	CA       pemText `json:"ca"`
	Cert     string  `json:"cert"`
	Key      string  `json:"key"`
}

// pemText is PEM text, or a list of it.
type pemText string

// UnmarshalJSON implements json.Unmarshaler.
func (p *pemText) UnmarshalJSON(data []byte) error {
	var list []string
	if len(data) > 0 && data[0] == '[' {
		if err := json.Unmarshal(data, &list); err != nil {
			return errors.New("ca must be PEM text or a list of it")
		}
	} else {
		var one string
		if err := json.Unmarshal(data, &one); err != nil {
			return errors.New("ca must be PEM text or a list of it")
		}
		list = []string{one}
	}
	*p = pemText(strings.Join(list, "\n"))
	return nil
}

// parse reads a credential file. Its errors quote nothing of it.
func parse(data []byte) (gobridge.Credential, error) {
	data = bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\xEF\xBB\xBF")))
	switch {
	case len(data) == 0:
		return gobridge.Credential{}, errEmpty
	case data[0] == '{':
		return parseJSON(data)
	}
	user, password, ok := strings.Cut(string(data), ":")
	if !ok || user == "" || password == "" || bytes.ContainsAny(data, "\r\n\x00") {
		return gobridge.Credential{}, errNoLogin
	}
	return gobridge.Credential{Username: user, Password: gobridge.NewSecret(password)}, nil
}

func parseJSON(data []byte) (gobridge.Credential, error) {
	var c content
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return gobridge.Credential{}, jsonFault(err, data)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return gobridge.Credential{}, fmt.Errorf("something follows the JSON object at byte %d", dec.InputOffset())
	}
	cred := gobridge.Credential{
		Username: c.Username, Password: gobridge.NewSecret(c.Password),
		CA: string(c.CA), Cert: c.Cert, Key: gobridge.NewSecret(c.Key),
	}
	if cred.IsZero() {
		return gobridge.Credential{}, errEmpty
	}
	return cred, nil
}

// jsonFault says what is wrong without the texts of package json, which quote from
// the input.
func jsonFault(err error, data []byte) error {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("it is not JSON at byte %d of %d", syntax.Offset, len(data))
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the JSON ends too early")
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
		return fmt.Errorf("%s must be text", wrong.Field)
	}
	return errors.New("it must be an object of username, password, ca, cert and key, all of them text")
}

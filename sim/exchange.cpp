#include "sim/exchange.hpp"
